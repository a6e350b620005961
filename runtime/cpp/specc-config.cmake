# find_package(specc REQUIRED PATHS ARTIFACT NO_DEFAULT_PATH) gives specc::specc, the library that loads artifacts, and, where
# this one was compiled with --static, specc::static: the same, and this artifact's model, as code of the app's own.
get_filename_component(_specc "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET specc::specc)
  add_library(specc::specc SHARED IMPORTED)
  set_target_properties(specc::specc PROPERTIES
    IMPORTED_LOCATION "${_specc}/lib/libspecc.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_specc}/include")
endif()
if(NOT TARGET specc::static AND EXISTS "${_specc}/lib/libspecc.a")
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
  add_library(specc::static STATIC IMPORTED)
  set_target_properties(specc::static PROPERTIES
    IMPORTED_LOCATION "${_specc}/lib/libspecc.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES CXX  # a C app needs the C++ standard library all the same
    INTERFACE_LINK_LIBRARIES "${_specc}/lib/libmodel.a;Threads::Threads;${CMAKE_DL_LIBS}"
    INTERFACE_INCLUDE_DIRECTORIES "${_specc}/include")
endif()
unset(_specc)

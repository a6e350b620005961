// The results of the last plan, which may be read without the library's turn. Letting go of them takes one.
#pragma once

#include "../frame.h"
#include "../model_library.h"

namespace specc {

class Results {
 public:
  Results(Frame& frame, ModelLibrary& library) : frame_(frame), library_(library) {}
  ~Results() {
    const Turn turn(library_.turn());
    frame_.clear();
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

 private:
  Frame& frame_;
  ModelLibrary& library_;
};

}  // namespace specc

// The least that a test needs. A failed check prints where and what, and the run goes on.
#pragma once

#include <iostream>
#include <string>

inline int failures = 0;

template <class A, class B>
void check_equal(const A& left, const B& right, const char* text, const char* file, int line, const std::string& note) {
  if (left == right) return;
  if (++failures > 20) return;  // the first few tell enough
  std::cerr << file << ":" << line << ": " << text << " failed";
  if (!note.empty()) std::cerr << " (" << note << ")";
  std::cerr << "\n";
}

#define CHECK(condition) check_equal(static_cast<bool>(condition), true, #condition, __FILE__, __LINE__, "")
#define CHECK_EQ(left, right) check_equal(left, right, #left " == " #right, __FILE__, __LINE__, "")
#define CHECK_NOTE(condition, note) \
  check_equal(static_cast<bool>(condition), true, #condition, __FILE__, __LINE__, note)

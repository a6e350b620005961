// Drafters that run on the host and know nothing but the committed tokens, and what the target keeps of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../manifest.h"

namespace specc {

class HostDrafter {
 public:
  virtual ~HostDrafter() = default;

  // Makes room for a text of this many tokens, so that a round need not.
  virtual void reserve(size_t tokens) = 0;
  // Forgets what it learnt from tokens[count..), which were taken back.
  virtual void truncate(size_t count) = 0;
  // Writes up to `k` tokens that may follow tokens[0..count), returns how many. Between calls the text only grows, but
  // for truncate().
  virtual size_t propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) = 0;
  // The same as a tree: follows[j] is the node that draft j stands behind, 0 the text's last token and i + 1 draft i < j.
  // The likeliest come first, so that the tree may be cut anywhere. One that knows no other way gives its chain.
  virtual size_t propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows);
  // Of the state buffer that it wants (buffer_of_host_drafter), the rows of all tokens but the last, [count - 1][width]; until its
  // next proposal.
  virtual void see(const float* rows, size_t width);
};

bool knows_host_drafter(const std::string& name);
// The state buffer that it must see before each proposal, f32 [1, S, width]; empty: none.
std::string buffer_of_host_drafter(const std::string& name);
// The artifact's own drafter; null if it has none that runs on the host.
std::unique_ptr<HostDrafter> make_host_drafter(const DrafterSpec& spec);

}  // namespace specc

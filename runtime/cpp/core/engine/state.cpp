#include "state.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <sys/mman.h>

#include "../error.h"

namespace specc {
namespace {

// No number that models compute looks like this throughout, nor do zeros.
constexpr unsigned char kPattern[] = {0xC5, 0x3A, 0x5C, 0xA3, 0x96, 0x69, 0xE1, 0x1E};

unsigned char pattern(int64_t offset) { return kPattern[static_cast<size_t>(offset) % sizeof kPattern]; }

// Calls body(begin, end, index of a buffer beside it) for each guard of a zone: all that lies between two buffers, and
// after the last; before the first no more than a canary, since a zone may be larger than what it holds.
template <class Body>
void for_guards(const ZoneSpec& zone, const std::vector<StateSpec>& buffers, int64_t rows, int64_t canary, Body&& body) {
  for (size_t i = 0; i < zone.buffers.size(); ++i) {
    const Placed& each = zone.buffers[i];
    if (i == 0) body(each.offset - canary, each.offset, each.buffer);
    const int64_t next = i + 1 < zone.buffers.size() ? zone.buffers[i + 1].offset : zone.offset + zone.bytes;
    body(each.offset + buffers[each.buffer].bytes_at(rows), next, each.buffer);
  }
}

}  // namespace

State::State(const std::vector<StateSpec>& buffers, const ArenaSpec& arena, ModelLibrary& library)
    : buffers_(buffers), arena_(arena), library_(library), plan_(&arena.plans.front()) {
  Mapping mapping = map(*plan_);
  memory_ = mapping.memory;
  views_ = std::move(mapping.views);
  const Turn turn(library_.turn());
  for (specc_tensor* view : views_) guarded_ = guarded_ || (view != nullptr && library_.api().data(view) != nullptr);
}

State::~State() {
  Mapping mapping{memory_, std::move(views_)};
  release(mapping, *plan_);
}

State::Mapping State::map(const ArenaPlan& plan) const {
  Mapping mapping;
  mapping.views.resize(buffers_.size(), nullptr);
  // Fresh pages are zero, and cost nothing until a row is written: a long context is paid for when it is used. Nobody
  // may touch what is no zone.
  void* memory = ::mmap(nullptr, static_cast<size_t>(plan.bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto fail = [&]() -> Error {
    return Error(Code::Memory, "no memory for a session's state").expected(std::to_string(plan.bytes) + " bytes");
  };
  if (memory == MAP_FAILED) throw fail();
  mapping.memory = static_cast<unsigned char*>(memory);
  for (const ZoneSpec& zone : plan.zones) {
    if (::mprotect(mapping.memory + zone.offset, static_cast<size_t>(zone.bytes), PROT_READ | PROT_WRITE) != 0) {
      release(mapping, plan);
      throw fail();
    }
    for_guards(zone, buffers_, plan.rows, arena_.canary, [&](int64_t begin, int64_t end, size_t) {
      for (int64_t at = begin; at < end; ++at) mapping.memory[at] = pattern(at);
    });
  }
  const Turn turn(library_.turn());
  try {
    library_.begin_arena(mapping.memory, plan.bytes);
    for (const ZoneSpec& zone : plan.zones) {
      for (const Placed& each : zone.buffers) view(mapping, plan, each);
    }
  } catch (...) {
    drop(mapping, plan);
    throw;
  }
  return mapping;
}

void State::view(Mapping& mapping, const ArenaPlan& plan, const Placed& placed) const {
  const StateSpec& buffer = buffers_[placed.buffer];
  const std::vector<int64_t> shape = buffer.shape_at(plan.rows);
  specc_tensor*& made = mapping.views[placed.buffer];
  made = library_.api().view(mapping.memory + placed.offset, buffer.dtype, static_cast<int32_t>(shape.size()),
                             shape.data());
  if (made == nullptr) throw std::bad_alloc();
  library_.place(buffer.name, made);
}

void State::drop(Mapping& mapping, const ArenaPlan& plan) const noexcept {
  for (specc_tensor* view : mapping.views) {
    if (view != nullptr) library_.api().release(view);
  }
  library_.end_arena(mapping.memory);
  ::munmap(mapping.memory, static_cast<size_t>(plan.bytes));
}

void State::release(Mapping& mapping, const ArenaPlan& plan) const noexcept {
  const Turn turn(library_.turn());
  drop(mapping, plan);
}

const void* State::data(size_t index) const {
  for (const ZoneSpec& zone : plan_->zones) {
    for (const Placed& each : zone.buffers) {
      if (each.buffer == index) return memory_ + each.offset;
    }
  }
  return nullptr;
}

void State::make_room(size_t rows, size_t kept) {
  if (rows <= static_cast<size_t>(plan_->rows)) return;
  const auto holds = [&](const ArenaPlan& plan) { return rows <= static_cast<size_t>(plan.rows); };
  const auto found = std::find_if(arena_.plans.begin(), arena_.plans.end(), holds);
  const ArenaPlan& next = found == arena_.plans.end() ? arena_.plans.back() : *found;
  if (&next == plan_) return;
  Mapping mapping = map(next);
  copy(mapping, next, kept);
  std::swap(mapping.memory, memory_);
  std::swap_ranges(views_.begin(), views_.end(), mapping.views.begin());
  release(mapping, *plan_);
  plan_ = &next;
}

void State::copy(const Mapping& to, const ArenaPlan& plan, size_t kept) const {
  std::vector<int64_t> places(buffers_.size(), 0);
  for (const ZoneSpec& zone : plan.zones) {
    for (const Placed& each : zone.buffers) places[each.buffer] = each.offset;
  }
  for (const ZoneSpec& zone : plan_->zones) {
    for (const Placed& each : zone.buffers) {
      const StateSpec& buffer = buffers_[each.buffer];
      const unsigned char* from = memory_ + each.offset;
      unsigned char* into = to.memory + places[each.buffer];
      if (!buffer.by_position) {
        std::memcpy(into, from, static_cast<size_t>(buffer.bytes));
        continue;
      }
      // [heads, rows, width]: the first rows of each head.
      const int64_t heads = buffer.shape[0], old_rows = plan_->rows;
      if (heads == 0 || old_rows == 0) continue;
      const int64_t width = buffer.bytes_at(old_rows) / heads / old_rows;
      const int64_t taken = std::min<int64_t>(static_cast<int64_t>(kept), old_rows);
      for (int64_t head = 0; head < heads; ++head) {
        std::memcpy(into + head * plan.rows * width, from + head * old_rows * width, static_cast<size_t>(taken * width));
      }
    }
  }
}

void State::check_guards() const {
  for (const ZoneSpec& zone : plan_->zones) {
    for_guards(zone, buffers_, plan_->rows, arena_.canary, [&](int64_t begin, int64_t end, size_t buffer) {
      for (int64_t at = begin; at < end; ++at) {
        if (memory_[at] == pattern(at)) continue;
        throw Error(Code::Guard, "something wrote outside of its state buffer (kv_zone_guard)")
            .where("zone " + zone.name + ", beside $" + buffers_[buffer].name)
            .expected("guard bytes from " + std::to_string(begin) + " to " + std::to_string(end))
            .found("another byte at " + std::to_string(at))
            .cure("report it with the model; tokens since the last check may be wrong");
      }
    });
  }
}

}  // namespace specc

#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

// Cuts a workspace into 64-byte aligned arrays. With a null base it only counts, so that one layout
// serves workspace_bytes and launch.
class WorkspaceLayout {
 public:
  explicit WorkspaceLayout(std::byte* base) : base_(base) {}

  template <class T>
  T* Take(int64_t count) {
    T* array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return array;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

// What is left of a workspace behind a layout.
template <class T>
std::span<T> TakeRest(const WorkspaceLayout& layout, std::span<std::byte> workspace) {
  const auto rest = workspace.subspan(static_cast<size_t>(layout.bytes()));
  return {reinterpret_cast<T*>(rest.data()), rest.size() / sizeof(T)};
}

}  // namespace weir

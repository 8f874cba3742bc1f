#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/communicator.h"

namespace weir {

// Sums over ranks are ours: a fixed binary tree over the rank index of the communicator,
//   t(a..b) = t(a..m) + t(m..b),  m = a + (b-a)/2,  t(a..a+1) = rank a's value,
// in the type of the data, element by element. The same bits on every rank, for any piece size.

enum class Destination : uint8_t {
  kAll,     // every rank ends with all sums
  kOwners,  // rank r ends with the sums of its slice; the rest of its data is as before
};

// Boundaries of `ranks` slices of [0, count), sizes equal up to one, the first ones larger.
std::vector<int64_t> EvenSlices(int64_t count, int64_t ranks);

// Replaces data by its sum over ranks. slices: size()+1 ascending boundaries from 0 to data.size(); rank r
// adds the elements [slices[r], slices[r+1]). The workspace bounds what is in flight; any size that holds
// one element per rank gives the same bits.
void TreeReduce(Communicator& communicator, std::span<float> data, std::span<const int64_t> slices,
                std::span<std::byte> workspace, Destination destination, const CollectiveName& name);
inline void TreeReduce(Communicator& communicator, std::span<float> data, std::span<std::byte> workspace,
                       const CollectiveName& name) {
  TreeReduce(communicator, data, EvenSlices(static_cast<int64_t>(data.size()), communicator.size()), workspace,
             Destination::kAll, name);
}
// Workspace for pieces of `piece` elements.
inline int64_t TreeReduceWorkspace(int64_t ranks, int64_t piece) {
  return ranks * piece * static_cast<int64_t>(sizeof(float));
}

// Adds `ranks` rows of `count` elements, one per rank, by the tree; row 0 becomes the sum, the others scratch.
void TreeAdd(float* rows, int64_t ranks, int64_t count);

// Small vectors on the host (loss, counts), gathered and added by the same tree.
void SumOverRanks(Communicator& communicator, std::span<double> values, const CollectiveName& name);
void SumOverRanks(Communicator& communicator, std::span<int64_t> values, const CollectiveName& name);

}  // namespace weir

#pragma once
#include <span>
#include <string>

#include "backend/plan.h"

namespace weir {

// Assigns an offset to every buffer: persistent ones first, end to end; then the others, largest first,
// each in the smallest gap among those alive at the same time; for the buffers of one memory. Returns that
// arena's bytes.
int64_t AssignOffsets(std::vector<PlannedBuffer>& buffers, Memory memory = Memory::kDevice);

// Ledger term of the memory of one value.
std::string TermOf(const Value& value);
// Of the workspace of one node.
std::string WorkspaceTermOf(const Node& node);

// The terms, in the order in which they are told everywhere.
std::span<const char* const> LedgerTerms();

// Live bytes per term at the step where they are most; "fragmentation" is the rest of the arena.
std::map<std::string, int64_t> MakeLedger(const Plan& plan, Memory memory = Memory::kDevice);
// That step.
int FullestStep(const Plan& plan, Memory memory = Memory::kDevice);

// Host memory for `value`, which no step touches, behind all that is planned; held for good, told under `term`.
void ReserveHost(Plan& plan, const Value& value, const std::string& term);

// Offsets and charged sizes are multiples of this: cache lines and any vector width fit.
inline constexpr int64_t kAlignment = 256;
inline int64_t Aligned(int64_t bytes) { return DivCeil(bytes, kAlignment) * kAlignment; }

}  // namespace weir

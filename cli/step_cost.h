#pragma once
#include <map>
#include <string>

#include "backend/plan.h"

namespace weir {

// What a machine does per second: flop, or bytes. The defaults are one H200's in bfloat16 (bench/results/h200.md);
// link is NVLink between two of them.
struct MachineRates {
  std::string name = "an H200 in bfloat16";
  double gemm_flops = 600e12;
  double attention_flops = 615e12, attention_backward_flops = 534e12;
  double experts_flops = 512e12, experts_backward_flops = 331e12;
  double memory_bandwidth = 4.15e12;
  double h2d = 41.8e9, d2h = 41.8e9;  // both ways at once, as the streaming optimizer was measured
  double link = 348e9;                // each way
};

// One H200's in float32: own kernels without tensor cores.
MachineRates Float32Rates();

// `cores` of an AMD EPYC with AVX-512 in float32, as `weir bench` has them; rough for models of small matrices.
MachineRates CpuRates(int64_t cores);

// A JSON object with these members' names; absent ones keep those of `rates`. Throws InvalidArgument naming unknown keys and
// values that are not positive.
MachineRates ReadMachine(const std::string& path, MachineRates rates = {});

// An estimate, not a measurement: every launch takes what its flop or its bytes take at the machine's rate, whichever
// is more. Copies to the host hide behind the phase they run in, rows between ranks behind all chunks but one.
struct StepCost {
  using Terms = std::map<std::string, double>;  // seconds of attention, experts, products, rows, link, host link, optimizer
  Terms micro_batch, update;  // forward and backward; once per step
  double flops = 0, link_bytes = 0, host_bytes = 0;  // of one micro-batch and one update; bytes one way
  Terms OfStep(double micro_batches = 1) const;
  double Total(double micro_batches = 1) const;
};
StepCost EstimateStep(const Plan& plan, const MachineRates& rates);

// "attention 1.70  experts 1.12", largest first.
std::string InWords(const StepCost::Terms& terms);

}  // namespace weir

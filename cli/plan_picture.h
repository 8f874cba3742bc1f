#pragma once
#include <string>

#include "cli/plan_search.h"

namespace weir {

// Whose bytes are drawn, and what they are called: "as given".
struct DrawnKnobs {
  std::string name;
  PlanKnobs knobs;
};

// One self-contained page: bytes of each term, stacked, against tokens per rank from 8,192 to `limit`, with the knobs
// as they are and with each operator that they stream left out; the budget as a line.
std::string PlanPicture(PlanSearch& search, const DrawnKnobs& drawn, int64_t limit, const std::string& title);

}  // namespace weir

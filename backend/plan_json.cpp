#include <nlohmann/json.hpp>

#include "backend/plan.h"
#include "graph/op_schema.h"

namespace weir {

std::string PlanJson(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["device"] = std::string(DeviceName(plan.device));
  json["arena_bytes"] = plan.arena_bytes;
  json["ledger"] = plan.ledger;
  json["host_arena_bytes"] = plan.host_arena_bytes;
  json["host_ledger"] = plan.host_ledger;
  Json& buffers = json["buffers"] = Json::array();
  for (const PlannedBuffer& buffer : plan.buffers) {
    buffers.push_back({{"name", buffer.name}, {"term", buffer.term},
                       {"memory", std::string(MemoryName(buffer.memory))}, {"offset", buffer.offset},
                       {"bytes", buffer.bytes}, {"first_step", buffer.first_step},
                       {"last_step", buffer.last_step}, {"persistent", buffer.persistent}});
  }
  constexpr const char* kPhases[] = {"begin", "forward", "backward", "norm", "update"};
  Json& steps = json["steps"] = Json::array();
  for (const PlannedStep& step : plan.steps) {
    steps.push_back({{"op", step.node->op()}, {"source", step.node->source},
                     {"phase", kPhases[static_cast<size_t>(step.node->phase)]}, {"inputs", step.inputs},
                     {"outputs", step.outputs}, {"workspace", step.workspace}});
  }
  return json.dump(1);
}

}  // namespace weir

#include <nlohmann/json.hpp>

#include "graph_passes/import_report.h"

namespace weir {

using Json = nlohmann::ordered_json;

static Json PerLayer(const ImportReport::PerLayer& entries) {
  Json list = Json::array();
  for (const auto& [words, layers] : entries)
    list.push_back({{"description", words}, {"layers", layers}});
  return list;
}

std::string ToJson(const ImportReport& report) {
  Json json = {{"layers", report.layers},
               {"moe_layers", report.moe_layers},
               {"dense_layers", report.dense_layers},
               {"hidden", report.hidden},
               {"vocabulary", report.vocabulary},
               {"experts", report.expert_count},
               {"top_k", report.top_k},
               {"expert_width", report.expert_width},
               {"attention", PerLayer(report.attention)},
               {"router", PerLayer(report.routers)},
               {"experts_form", PerLayer(report.experts)},
               {"shared_expert", PerLayer(report.shared)},
               {"dense_mlp", PerLayer(report.dense)},
               {"parameters", report.parameters},
               {"active_parameters", report.active_parameters},
               {"dtypes", report.dtypes},
               {"tied", report.tied}};
  json["trained"] = Json::array();
  for (const auto& p : report.trained) {
    json["trained"].push_back({{"name", p.name},
                               {"dims", p.dims},
                               {"kind", p.kind},
                               {"dtype", p.dtype},
                               {"initializers", p.initializers}});
  }
  json["shared"] = Json::array();
  for (const auto& s : report.shared_parameters)
    json["shared"].push_back({{"name", s.name}, {"readers", s.readers}});
  json["frozen"] = Json::array();
  for (const auto& f : report.frozen)
    json["frozen"].push_back({{"name", f.name}, {"dims", f.dims}, {"reason", f.reason}});
  json["stripped"] = report.stripped;
  json["notices"] = report.notices;
  return json.dump(2);
}

}  // namespace weir

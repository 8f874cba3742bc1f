#include "cli/plan_output.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "backend/arena_layout.h"
#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {
namespace {

template <class... Args>
std::string Line(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

std::string Signed(int64_t bytes) { return StrCat(bytes < 0 ? "-" : "+", FormatBytes(std::abs(bytes))); }

void PrintPaper(const std::map<std::string, int64_t>& ledger, const std::vector<ClosedTerm>& terms, const char* memory, std::ostream& out) {
  int64_t planned = 0, paper = 0;
  out << Line("%-14s %14s %14s  %s\n", memory, "this plan", "paper", "its form");
  for (const char* term : LedgerTerms()) {
    const auto own = ledger.find(term);
    const auto closed = std::ranges::find(terms, term, &ClosedTerm::term);
    const int64_t bytes = own == ledger.end() ? 0 : own->second;
    if (bytes == 0 && closed == terms.end()) continue;
    planned += bytes;
    if (closed != terms.end()) paper += closed->bytes;
    out << Line("%-14s %14s %14s  %s\n", term, FormatBytes(bytes).c_str(), closed == terms.end() ? "-" : FormatBytes(closed->bytes).c_str(),
                closed == terms.end() ? "" : closed->formula.c_str());
  }
  out << Line("%-14s %14s %14s\n", "sum", FormatBytes(planned).c_str(), FormatBytes(paper).c_str());
}

void PrintLongest(const PlanFindings& found, std::ostream& out) {
  if (found.longest == nullptr) {
    out << "max tokens: not even a sequence of " << found.token_step << " tokens fits\n";
    return;
  }
  const PlanKnobs& knobs = found.longest->knobs;
  out << "max tokens: --sequence " << knobs.sequence << " (steps of " << found.token_step << "): " << FormatBytes(found.longest->device_bytes) << " device, "
      << FormatBytes(found.longest->host_bytes) << " host, about " << Line("%.3g", found.longest->cost.Total()) << " s a step"
      << (knobs.sequence + found.token_step > kLongestSearched ? "; no longer one was tried\n" : "\n");
}

void PrintAdvice(const PlanFindings& found, std::ostream& out) {
  out << Line("%-44s %12s %12s %9s %9s  %s\n", "one knob alone", "device", "host", "time", "flop", "host link, rank link a step");
  for (const Advice& a : found.advice) {
    out << Line("%-44s %12s %12s %+8.2fs %+8.1f%%  %s, %s\n", a.flags.c_str(), Signed(-a.device_saved).c_str(), Signed(a.host_added).c_str(), a.seconds_added,
                100 * a.flop_share_added, Signed(static_cast<int64_t>(a.host_bytes_added)).c_str(), Signed(static_cast<int64_t>(a.link_bytes_added)).c_str());
  }
  if (found.advice.empty()) out << "no knob saves anything\n";
}

void PrintTried(const PlanSearch& search, std::ostream& out) {
  out << Line("%-12s %12s %12s %10s  %s\n", "", "device", "host", "estimate", "knobs; seconds by term");
  const PlanKnobs none{.micro_batch = search.base().micro_batch, .sequence = search.base().sequence, .dispatch = {}, .training = {}};
  std::set<std::string> told;
  for (const auto& one : search.tried()) {
    const std::string flags = FlagsOf(none, *one);
    if (!one->refused.empty() || !told.insert(flags).second) continue;
    out << Line("%-12s %12s %12s %9.3fs  ", one->fits ? "fits" : "over budget", FormatBytes(one->device_bytes).c_str(), FormatBytes(one->host_bytes).c_str(),
                one->seconds)
        << (flags.empty() ? "none" : flags) << "; " << InWords(one->cost.OfStep(one->micro_batches)) << "\n";
  }
}

std::string Joined(const auto& texts, const char* before) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + (before + text);
  return all;
}

void PrintChosen(const PlanFindings& found, const PlanSearch& search, std::ostream& out) {
  const std::string kept = found.automatic && !search.fixed().empty() ? Joined(search.fixed(), "--") : "";
  if (found.chosen == nullptr) {
    if (!kept.empty()) out << "kept as given: " << kept << "; without them there is more to choose from\n";
    out << "no choice of these knobs fits; fewer tokens (--max-tokens finds how many), more ranks or more memory are left, and --leaves, which changes rounding: more allow smaller chunks of experts\n";
    return;
  }
  out << "fits with " << FormatBytes(found.chosen->device_bytes) << " device, " << FormatBytes(found.chosen->host_bytes) << " host, about "
      << Line("%.3g", found.chosen->seconds) << " s a step: " << InWords(found.chosen->cost.OfStep(found.chosen->micro_batches)) << "\n  " << found.command_line << "\n";
  if (!kept.empty()) out << "kept as given: " << kept << "\n";
  if (!found.changed.empty()) out << "not as given: " << Joined(found.changed, "") << "\n";
}

nlohmann::ordered_json ToJson(const Candidate& one, const std::string& flags) {
  nlohmann::ordered_json json = {{"flags", flags}, {"fits", one.fits}};
  if (!one.refused.empty()) json["refused"] = one.refused;
  if (!one.refused.empty()) return json;
  json.update({{"device_bytes", one.device_bytes}, {"host_bytes", one.host_bytes}, {"seconds", one.seconds}, {"seconds_by_term", one.cost.OfStep(one.micro_batches)}});
  return json;
}

nlohmann::ordered_json ToJson(const std::vector<ClosedTerm>& terms) {
  auto list = nlohmann::ordered_json::array();
  for (const ClosedTerm& term : terms) list.push_back({{"term", term.term}, {"formula", term.formula}, {"bytes", term.bytes}});
  return list;
}

}  // namespace

void PrintPlan(const PlanFindings& found, std::ostream& out) {
  out << PlanTable(*found.plan) << "\n";
  PrintPaper(found.plan->ledger, found.paper.device, "device", out);
  if (found.plan->host_arena_bytes > 0) PrintPaper(found.plan->host_ledger, found.paper.host, "host", out);
  out << "paper: arXiv 2609.14306, equation 6, " << found.paper.symbols << "\n";
  out << "estimated step " << Line("%.3g", found.cost.Total(found.micro_batches)) << " s on " << found.machine << ": " << InWords(found.cost.OfStep(found.micro_batches)) << "\n";
}

void PrintSearch(const PlanFindings& found, const PlanSearch& search, std::ostream& out) {
  if (found.searched_length) PrintLongest(found, out);
  if (found.automatic) {
    PrintTried(search, out);
  } else if (found.searched_knobs()) {
    PrintAdvice(found, out);
  }
  if (found.searched_knobs()) PrintChosen(found, search, out);
}

std::string FindingsJson(const PlanFindings& found, const PlanSearch& search) {
  auto json = nlohmann::ordered_json::parse(PlanJson(*found.plan));
  json["paper"] = {{"symbols", found.paper.symbols}, {"device", ToJson(found.paper.device)}, {"host", ToJson(found.paper.host)}};
  json["estimate"] = {{"machine", found.machine}, {"seconds", found.cost.Total(found.micro_batches)}, {"seconds_by_term", found.cost.OfStep(found.micro_batches)}, {"flop", found.cost.flops},
                      {"host_link_bytes", found.cost.host_bytes}, {"rank_link_bytes", found.cost.link_bytes}};
  if (found.budgets.given()) json["budget"]["fits"] = found.fits;
  if (found.budgets.given()) json["budget"]["beside_arena"] = found.budgets.beside_arena;
  if (found.budgets.device >= 0) json["budget"]["device_memory"] = found.budgets.device;
  if (found.budgets.host >= 0) json["budget"]["host_memory"] = found.budgets.host;
  if (found.searched_length) {
    json["max_tokens"] = found.longest == nullptr ? nlohmann::ordered_json{{"sequence", 0}, {"step", found.token_step}}
                                                  : nlohmann::ordered_json{{"sequence", found.longest->knobs.sequence},
                                                                           {"step", found.token_step},
                                                                           {"device_bytes", found.longest->device_bytes},
                                                                           {"host_bytes", found.longest->host_bytes}};
  }
  if (found.searched_knobs()) {
    json["advice"] = nlohmann::ordered_json::array();
    for (const Advice& a : found.advice) {
      json["advice"].push_back({{"flags", a.flags}, {"device_saved", a.device_saved}, {"host_added", a.host_added}, {"seconds_added", a.seconds_added},
                                {"flop_share_added", a.flop_share_added}, {"host_link_bytes_added", a.host_bytes_added}, {"rank_link_bytes_added", a.link_bytes_added}});
    }
  }
  if (found.searched_knobs()) {
    json["auto"]["fits"] = found.chosen != nullptr;
    if (found.chosen != nullptr) json["auto"].update(ToJson(*found.chosen, FlagsOf(search.base(), *found.chosen)));
    json["auto"]["command_line"] = found.command_line;
    json["auto"]["not_as_given"] = found.changed;
    for (const auto& one : search.tried()) json["auto"]["tried"].push_back(ToJson(*one, FlagsOf(search.base(), *one)));
  }
  return json.dump(2);
}

}  // namespace weir

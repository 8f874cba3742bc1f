#pragma once
#include <string>
#include <string_view>

namespace weir {

// `text` as a terminal may show it: names of a damaged or hostile file in it cannot move the cursor or break the encoding. Bytes that
// are no UTF-8, and control characters but for '\n' and '\t', become "\x1b".
std::string Printable(std::string_view text);

}  // namespace weir

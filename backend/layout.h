#pragma once
#include "graph/layout.h"  // where passes can read it too

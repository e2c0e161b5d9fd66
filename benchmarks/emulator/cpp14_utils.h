// What kernels include for templates of C++14, which C++17 has.
#pragma once
#include <type_traits>
#include <utility>

// What kernels of TensorRT-RTX use of CUDA, in C++ for one processor. Threads of a block are fibers (fibers.h).
#include <algorithm>
#include <cassert>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
using std::signbit;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
#define __restrict__
#define __HAS_FP16
#define __HAS_BF16

struct Size3 {
  unsigned x, y, z;
};
extern Size3 threadIdx, blockIdx, blockDim, gridDim;
alignas(64) extern char smem[];

// Threads, by their number in the block.
extern int current_thread;
extern uint64_t exchanged[1024];
void wait_for_block();
void wait_for_warp();
inline int threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline void __syncthreads() { wait_for_block(); }
inline void __syncwarp(unsigned = ~0u) { wait_for_warp(); }
inline void __threadfence() {}

template <class T> T from_lane(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  memcpy(&exchanged[current_thread], &value, sizeof(T));
  wait_for_warp();
  int other = current_thread / 32 * 32 + lane;
  memcpy(&value, &exchanged[other < threads() ? other : current_thread], sizeof(T));
  wait_for_warp();
  return value;
}
inline int lane() { return current_thread % 32; }
template <class T> T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return from_lane(value, lane() / width * width + from % width);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  int other = lane() ^ mask;
  return from_lane(value, other < (lane() / width + 1) * width ? other : lane());
}
template <class T> T __shfl_down_sync(unsigned, T value, int by, int width = 32) {
  return from_lane(value, lane() + by < (lane() / width + 1) * width ? lane() + by : lane());
}
template <class T> T __shfl_up_sync(unsigned, T value, int by, int width = 32) {
  return from_lane(value, lane() - by >= lane() / width * width ? lane() - by : lane());
}
inline unsigned atomicInc(unsigned *at, unsigned most) {
  unsigned before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}

// Numbers.
constexpr double inf = 4e38;
template <class To, class From> To same_bits(From value) {
  To made;
  static_assert(sizeof(To) == sizeof(From));
  memcpy(&made, &value, sizeof(To));
  return made;
}
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanhf tanhf
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmaf_ieee_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline long long __float2ll_rz(float x) { return (long long)x; }
inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
inline unsigned long long __float2ull_rz(float x) { return (unsigned long long)x; }
inline float __int2float_rd(int x) { return (float)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline float __ll2float_rd(long long x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __uint2float_rd(unsigned x) { return (float)x; }
inline float __ull2float_rd(unsigned long long x) { return (float)x; }

struct bfloat {
  uint16_t bits;
  bfloat() {}
  bfloat(const bfloat &x) = default;
  bfloat(const volatile bfloat &x) : bits(x.bits) {}
  bfloat &operator=(const bfloat &x) = default;
  void operator=(const bfloat &x) volatile { bits = x.bits; }
  bfloat(float x) {
    uint32_t u = same_bits<uint32_t>(x);
    bits = isnan(x) ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  }
  bfloat(double x) : bfloat((float)x) {}
  bfloat(int x) : bfloat((float)x) {}
  bfloat(unsigned x) : bfloat((float)x) {}
  bfloat(long long x) : bfloat((float)x) {}
  bfloat(bool x) : bfloat((float)x) {}
  operator float() const { return same_bits<float>((uint32_t)bits << 16); }
};
inline bfloat operator+(bfloat a, bfloat b) { return (float)a + (float)b; }
inline bfloat operator-(bfloat a, bfloat b) { return (float)a - (float)b; }
inline bfloat operator*(bfloat a, bfloat b) { return (float)a * (float)b; }
inline bfloat operator/(bfloat a, bfloat b) { return (float)a / (float)b; }
inline bfloat &operator+=(bfloat &a, bfloat b) { return a = a + b; }

using __half = _Float16;
using half = _Float16;
using __nv_bfloat16 = bfloat;
struct __half2 {
  __half x, y;
};
using half2 = __half2;
struct __nv_bfloat162 {
  bfloat x, y;
};
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
inline float __half2float(__half x) { return (float)x; }
inline __half __float2half(float x) { return (__half)x; }
inline __half __float2half_rn(float x) { return (__half)x; }
inline float __bfloat162float(bfloat x) { return (float)x; }
inline bfloat __float2bfloat16(float x) { return x; }
inline bfloat __float2bfloat16_rn(float x) { return x; }
inline int __half2int_rz(__half x) { return (int)(float)x; }
inline __half __int2half_rn(int x) { return (__half)x; }
inline __half __int2half_rd(int x) { return (__half)x; }

#define OF_ONE(result, name, made)                                                                                     \
  inline result(__half) name(__half value) { float x = (float)value; return (result(__half))(made); }                 \
  inline result(bfloat) name(bfloat value) { float x = (float)value; return (result(bfloat))(made); }
#define OF_TWO(result, name, made)                                                                                     \
  inline result(__half) name(__half a, __half b) { float x = (float)a, y = (float)b; return (result(__half))(made); } \
  inline result(bfloat) name(bfloat a, bfloat b) { float x = (float)a, y = (float)b; return (result(bfloat))(made); }
#define SAME(type) type
#define TRUTH(type) bool
OF_ONE(SAME, hexp, expf(x))
OF_ONE(SAME, hexp2, exp2f(x))
OF_ONE(SAME, hlog, logf(x))
OF_ONE(SAME, hlog2, log2f(x))
OF_ONE(SAME, hsqrt, sqrtf(x))
OF_ONE(SAME, hrsqrt, 1 / sqrtf(x))
OF_ONE(SAME, hrcp, 1 / x)
OF_ONE(SAME, hrint, rintf(x))
OF_ONE(SAME, hfloor, floorf(x))
OF_ONE(SAME, hceil, ceilf(x))
OF_ONE(SAME, htrunc, truncf(x))
OF_ONE(SAME, htanh, tanhf(x))
OF_ONE(SAME, hsin, sinf(x))
OF_ONE(SAME, hcos, cosf(x))
OF_ONE(SAME, __habs, fabsf(x))
OF_ONE(SAME, __hneg, -x)
OF_ONE(TRUTH, __hisnan, isnan(x))
OF_ONE(TRUTH, __hisinf, isinf(x))
OF_TWO(SAME, __hadd, x + y)
OF_TWO(SAME, __hsub, x - y)
OF_TWO(SAME, __hmul, x *y)
OF_TWO(SAME, __hdiv, x / y)
OF_TWO(SAME, __hmax, isnan(y) || x > y ? x : y)
OF_TWO(SAME, __hmin, isnan(y) || x < y ? x : y)
OF_TWO(TRUTH, __hlt, x < y)
OF_TWO(TRUTH, __hgt, x > y)
OF_TWO(TRUTH, __hle, x <= y)
OF_TWO(TRUTH, __hge, x >= y)
OF_TWO(TRUTH, __heq, x == y)
OF_TWO(TRUTH, __hne, x != y)
inline __half __hfma(__half a, __half b, __half c) { return (__half)((float)a * (float)b + (float)c); }
inline bfloat __hfma(bfloat a, bfloat b, bfloat c) { return (float)a * (float)b + (float)c; }

// The names that kernels have for types.
using __myln_bool = bool;
using __myln_int8 = signed char;
using __myln_uint8 = unsigned char;
using __myln_int16 = short;
using __myln_uint16 = unsigned short;
using __myln_int32 = int;
using __myln_uint32 = unsigned;
using __myln_int64 = long long;
using __myln_uint64 = unsigned long long;
using __myln_half = __half;
using __myln_half2 = __half2;
using __myln_bf16 = bfloat;
using __myln_bf162 = __nv_bfloat162;
using __myln_float = float;
using __myln_double = double;
template <class T, unsigned N, unsigned A> struct __myln_vtype {
  T values[N];
};
template <class To, class From> To __myln_cast(From x) { return static_cast<To>(x); }

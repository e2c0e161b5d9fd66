// The part of CUB's block exchange that kernels of running sums use.
#pragma once
namespace cub {
template <class T, int N, int K> struct BlockExchange {
  struct TempStorage {
    T values[N * K];
  };
  TempStorage &storage;
  BlockExchange(TempStorage &storage) : storage(storage) {}
  void StripedToBlocked(T (&x)[K]) { exchange(x, N, 1, 1, K); }
  void BlockedToStriped(T (&x)[K]) { exchange(x, 1, K, N, 1); }
  void exchange(T (&x)[K], int from, int from_thread, int to, int to_thread) {
    for (int i = 0; i < K; i++) storage.values[i * from + threadIdx.x * from_thread] = x[i];
    __syncthreads();
    for (int i = 0; i < K; i++) x[i] = storage.values[i * to + threadIdx.x * to_thread];
    __syncthreads();
  }
};
}  // namespace cub

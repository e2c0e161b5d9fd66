// The part of CUB's block scan that kernels of running sums use.
#pragma once
namespace cub {
template <class T, int N> struct BlockScan {
  struct TempStorage {
    T sums[N];
  };
  TempStorage &storage;
  BlockScan(TempStorage &storage) : storage(storage) {}
  template <int K> void scan(T (&given)[K], T (&made)[K], T &total, bool exclusive) {
    T own = 0, before = 0, within[K];
    for (int i = 0; i < K; i++) {
      within[i] = exclusive ? own : own + given[i];
      own = own + given[i];
    }
    storage.sums[threadIdx.x] = own;
    __syncthreads();
    total = 0;
    for (int i = 0; i < N; i++) {
      if (i == (int)threadIdx.x) before = total;
      total = total + storage.sums[i];
    }
    __syncthreads();
    for (int i = 0; i < K; i++) made[i] = before + within[i];
  }
  template <int K> void InclusiveSum(T (&given)[K], T (&made)[K], T &total) { scan(given, made, total, false); }
  template <int K> void ExclusiveSum(T (&given)[K], T (&made)[K], T &total) { scan(given, made, total, true); }
};
}  // namespace cub

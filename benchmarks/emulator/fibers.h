// Runs a kernel: block by block, the threads of each in turn until they all wait.
Size3 threadIdx, blockIdx, blockDim, gridDim;
alignas(64) char smem[1 << 18];
int current_thread;
uint64_t exchanged[1024];

struct Fiber {
  ucontext_t context;
  char *stack;
  bool done;
  Size3 index;
};
struct Barrier {
  int arrived, passed;
};
static Fiber fibers[1024];
static ucontext_t scheduler;
static Barrier of_block, of_warps[32];
static void (*kernel)();

static void run_thread() {
  kernel();
  fibers[current_thread].done = true;
  swapcontext(&fibers[current_thread].context, &scheduler);
}

static void wait_at(Barrier &barrier, int first, int last) {
  int alive = 0, before = barrier.passed;
  for (int i = first; i < last; i++) alive += !fibers[i].done;
  if (++barrier.arrived >= alive) {
    barrier.arrived = 0;
    barrier.passed++;
  }
  while (barrier.passed == before) swapcontext(&fibers[current_thread].context, &scheduler);
}
void wait_for_block() { wait_at(of_block, 0, threads()); }
void wait_for_warp() {
  int warp = current_thread / 32;
  wait_at(of_warps[warp], warp * 32, min(threads(), warp * 32 + 32));
}

static Size3 index_of(unsigned i) { return {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y}; }

static void run_alone() {
  for (current_thread = 0; current_thread < threads(); current_thread++) {
    threadIdx = index_of(current_thread);
    kernel();
  }
}

static bool run_together() {
  const int stack = 1 << 17, rounds = 1000000;
  of_block = {};
  memset(of_warps, 0, sizeof of_warps);
  for (int i = 0; i < threads(); i++) {
    Fiber &fiber = fibers[i];
    if (!fiber.stack) fiber.stack = (char *)malloc(stack);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = stack;
    fiber.context.uc_link = &scheduler;
    fiber.done = false;
    fiber.index = index_of(i);
    makecontext(&fiber.context, run_thread, 0);
  }
  for (int round = 0; round < rounds; round++) {
    bool waiting = false;
    for (int i = 0; i < threads(); i++) {
      if (fibers[i].done) continue;
      current_thread = i;
      threadIdx = fibers[i].index;
      swapcontext(&scheduler, &fibers[i].context);
      waiting |= !fibers[i].done;
    }
    if (!waiting) return true;
  }
  return false;
}

// Whether all threads ended; `together`: they exchange values.
static bool launch(const unsigned *grid, const unsigned *block, bool together, void (*body)()) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  kernel = body;
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        if (!together) run_alone();
        else if (!run_together()) return false;
  return true;
}

// One level of a breadth-first search: claimed vertices go to the next frontier.
extern "C" __global__ void bfs_frontier(const int* offsets, const int* edges, const int* frontier, int size, int* next,
                                        int* next_size, int* level, int depth) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  int vertex = frontier[i];
  for (int e = offsets[vertex]; e < offsets[vertex + 1]; ++e) {
    int other = edges[e];
    if (atomicCAS(&level[other], -1, depth) == -1) next[atomicAdd(next_size, 1)] = other;
  }
}

// First and number of occurrences of a pattern.
extern "C" __global__ void string_search(const char* text, int length, const char* pattern, int size, int* first,
                                         unsigned long long* count) {
  int start = blockIdx.x * blockDim.x + threadIdx.x;
  bool match = start + size <= length;
  for (int k = 0; match && k < size; ++k) match = text[start + k] == pattern[k];
  if (!__syncthreads_or(match)) return;
  if (match) {
    atomicMin(first, start);
    atomicAdd(count, 1ull);
  }
}

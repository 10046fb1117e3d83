// All-pairs gravity, bodies staged a block at a time.
__device__ float3 body_body(float4 bi, float4 bj, float3 ai) {
  float3 r = make_float3(bj.x - bi.x, bj.y - bi.y, bj.z - bi.z);
  float d2 = r.x * r.x + r.y * r.y + r.z * r.z + 1e-3f;
  float inverse = rsqrtf(d2);
  float s = bj.w * inverse * inverse * inverse;
  return make_float3(ai.x + r.x * s, ai.y + r.y * s, ai.z + r.z * s);
}

extern "C" __global__ void nbody(const float4* bodies, float3* acceleration, int n) {
  extern __shared__ float4 tile[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 mine = i < n ? bodies[i] : make_float4(0, 0, 0, 0);
  float3 a = {0, 0, 0};
  for (int start = 0; start < n; start += blockDim.x) {
    int j = start + threadIdx.x;
    tile[threadIdx.x] = j < n ? bodies[j] : make_float4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < blockDim.x; ++k) a = body_body(mine, tile[k], a);
    __syncthreads();
  }
  if (i < n) acceleration[i] = a;
}

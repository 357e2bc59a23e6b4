// A libcuda.so.1 as an old driver has it: all that the CUDA runtime asks before it gives up.
extern "C" {
__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
__attribute__((visibility("default"))) int cuInit(unsigned) { return 0; }
}

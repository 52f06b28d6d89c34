/* A stand-in for NVIDIA's management library: the functions that the probe calls, with their signatures as
 * in NVIDIA's "NVML API Reference Guide", for two GPUs of made-up values. Variables of the environment
 * choose a fault: FAKE_NVML_INIT a return code of nvmlInit_v2, FAKE_NVML_LOST the index of a GPU that is
 * lost, FAKE_NVML_HANGS any value for a call that never returns, FAKE_NVML_COUNT how many GPUs there are,
 * FAKE_NVML_MIG any value for a first GPU in two parts, FAKE_NVML_DIES any value for a crash,
 * FAKE_NVML_DIES_LAST any value for one when the process ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { int gpu; const char *uuid; memory bytes; } device;

static device gpus[2] = {
    {0, "GPU-00000000-1111-2222-3333-444444444444", {150000000000ULL, 149000000000ULL, 1000000000ULL}},
    {1, "GPU-55555555-6666-7777-8888-999999999999", {150000000000ULL, 20000000000ULL, 130000000000ULL}},
};
static device parts[2] = {
    {0, "MIG-aaaaaaaa-0000-0000-0000-000000000001", {75000000000ULL, 74000000000ULL, 1000000000ULL}},
    {0, "MIG-aaaaaaaa-0000-0000-0000-000000000002", {75000000000ULL, 73000000000ULL, 2000000000ULL}},
};

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static int put(char *buffer, unsigned length, const char *text) {
    if (strlen(text) >= length) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    strcpy(buffer, text);
    return 0;
}

int nvmlInit_v2(void) {
    if (getenv("FAKE_NVML_DIES")) abort();
    while (getenv("FAKE_NVML_HANGS")) sleep(1);
    return number("FAKE_NVML_INIT", 0);
}

int nvmlShutdown(void) { return 0; }

__attribute__((destructor)) static void end(void) {
    if (getenv("FAKE_NVML_DIES_LAST")) abort();
}

const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : code == 999 ? "Unknown Error" : "Some Error";
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return put(buffer, length, "580.65.06"); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("FAKE_NVML_COUNT", 2); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    if (number("FAKE_NVML_LOST", -1) == (int)index) return 15; /* NVML_ERROR_GPU_IS_LOST */
    if (index > 1) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *handle = &gpus[index];
    return 0;
}

int nvmlDeviceGetUUID(device *handle, char *buffer, unsigned length) { return put(buffer, length, handle->uuid); }

int nvmlDeviceGetName(device *handle, char *buffer, unsigned length) {
    return put(buffer, length, handle->gpu ? "NVIDIA H200 NVL" : "NVIDIA H200");
}

int nvmlDeviceGetMemoryInfo(device *handle, memory *bytes) { *bytes = handle->bytes; return 0; }

int nvmlDeviceGetCudaComputeCapability(device *handle, int *major, int *minor) {
    *major = 9 + handle->gpu;
    *minor = 0;
    return 0;
}

int nvmlDeviceGetMigMode(device *handle, unsigned *mode, unsigned *pending) {
    *mode = *pending = getenv("FAKE_NVML_MIG") && handle->gpu == 0;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(device *handle, unsigned *count) { *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(device *handle, unsigned index, device **part) {
    if (index != 0 && index != 3) return 6; /* NVML_ERROR_NOT_FOUND */
    *part = &parts[index == 3];
    return 0;
}

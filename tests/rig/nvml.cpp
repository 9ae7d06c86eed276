// NVML for machines without a card: as many virtual cards as SYNOD_RIG_CARDS says ("2x24GiB"), and the faults that
// SYNOD_RIG_NVML names, separated by commas. A test instrument: what is not asked of it in a test is not there.
//
//   no-driver        every call says that no driver is loaded
//   free-above-total card 0 says that more of its memory is free than it has
//   same-uuid        all cards have one UUID
//   lost             the last card has fallen off the bus
//   hangs            the first call never returns
//
// Signatures and codes: NVIDIA's NVML reference, https://docs.nvidia.com/deploy/nvml-api/.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace {

enum Code : int { kSuccess = 0, kInvalidArgument = 2, kDriverNotLoaded = 9, kGpuLost = 15, kUnknown = 999 };

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct Utilization {
    unsigned gpu, memory;
};

// A handle is a card's index plus one, so that none is null.
using Handle = void*;

bool has_fault(const char* name) {
    const char* faults = std::getenv("SYNOD_RIG_NVML");
    if (faults == nullptr) return false;
    const size_t length = std::strlen(name);
    for (const char* at = faults; (at = std::strstr(at, name)) != nullptr; at += length) {
        const bool starts = at == faults || at[-1] == ',';
        if (starts && (at[length] == '\0' || at[length] == ',')) return true;
    }
    return false;
}

struct Cards {
    unsigned count = 0;
    unsigned long long gib = 0;
};

Cards cards() {
    Cards cards;
    const char* text = std::getenv("SYNOD_RIG_CARDS");
    if (text != nullptr && std::sscanf(text, "%ux%lluGiB", &cards.count, &cards.gib) != 2) cards = Cards{};
    return cards;
}

unsigned index_of(Handle handle) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(handle)) - 1; }

Code copy(char* out, unsigned length, const char* text) {
    if (std::strlen(text) >= length) return kInvalidArgument;
    std::strcpy(out, text);
    return kSuccess;
}

bool is_lost(Handle handle) { return has_fault("lost") && index_of(handle) + 1 == cards().count; }

}  // namespace

extern "C" {

int nvmlInit_v2() {
    while (has_fault("hangs")) pause();
    return has_fault("no-driver") ? kDriverNotLoaded : kSuccess;
}

int nvmlShutdown() { return kSuccess; }

int nvmlSystemGetDriverVersion(char* version, unsigned length) { return copy(version, length, "570.00"); }

int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = cards().count;
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
    if (index >= cards().count) return kInvalidArgument;
    *handle = reinterpret_cast<Handle>(static_cast<uintptr_t>(index) + 1);
    return is_lost(*handle) ? kGpuLost : kSuccess;
}

int nvmlDeviceGetUUID(Handle handle, char* uuid, unsigned length) {
    char text[64];
    const unsigned number = has_fault("same-uuid") ? 0 : index_of(handle);
    std::snprintf(text, sizeof text, "GPU-00000000-0000-0000-0000-%012u", number);
    return copy(uuid, length, text);
}

int nvmlDeviceGetName(Handle, char* name, unsigned length) { return copy(name, length, "Virtual card"); }

int nvmlDeviceGetMemoryInfo_v2(Handle handle, Memory* memory) {
    memory->total = cards().gib << 30;
    memory->reserved = 0;
    memory->used = 1ull << 30;
    const bool lies = has_fault("free-above-total") && index_of(handle) == 0;
    memory->free = lies ? memory->total + 1 : memory->total - memory->used;
    return kSuccess;
}

int nvmlDeviceGetCudaComputeCapability(Handle, int* major, int* minor) {
    *major = 9;
    *minor = 0;
    return kSuccess;
}

int nvmlDeviceGetEccMode(Handle, unsigned* current, unsigned* pending) {
    *current = *pending = 1;
    return kSuccess;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Handle, unsigned long long* reasons) {
    *reasons = 0x1 | 0x4;  // idle, and the power cap of software
    return kSuccess;
}

int nvmlDeviceGetUtilizationRates(Handle, Utilization* rates) {
    *rates = {.gpu = 25, .memory = 5};
    return kSuccess;
}

int nvmlDeviceGetTemperature(Handle, unsigned, unsigned* celsius) {
    *celsius = 41;
    return kSuccess;
}

int nvmlDeviceGetPowerUsage(Handle, unsigned* milliwatts) {
    *milliwatts = 70500;
    return kSuccess;
}

}  // extern "C"

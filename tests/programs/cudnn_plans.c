/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does the real cuDNN accept our attention graphs, and does it have kernels for
 * them?  It compiles them for described devices ("deviceless" compilation), so that
 * no GPU is needed; see cases/train/cudnn.sh.  Exits with 77 without cuDNN.
 */
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "gpu/nvidia/cudnn_attention.h"

/* The first version with deviceless compilation. */
#define VERSION_MIN 91200

/* A device description in cuDNN's own terms; sizes are from NVIDIA's documents. */
static const char description[] =
	"{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,"
	"\"totalGlobalMem\":80000000000,"
	"\"maxGridSize\":[2147483647,65535,65535],"
	"\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
	"\"multiProcessorCount\":%d,\"smCountOrigin\":0,\"warpSize\":32,"
	"\"maxSharedMemoryPerBlock\":49152,"
	"\"maxSharedMemoryPerBlockOptin\":%d,"
	"\"oversizedSharedMemoryPerBlock\":0,"
	"\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
	"\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
	"\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
	"\"supportCoopLaunch\":1,\"smClockRateKHz\":1500000,"
	"\"memClockRateKHz\":2600000,\"memoryBusWidth\":5120,"
	"\"l2CacheSize\":41943040,\"deviceName\":\"%s\"}";

static const struct {
	const char *name;
	int version, multiprocessors, shared;
} devices[] = {
	{ "A100", 800, 108, 166912 },
	{ "H100", 900, 132, 232448 },
};

static const struct cudnn_attention shapes[] = {
	{ CUDNN_DATA_BFLOAT16, 32, 1024, 12, 64 }, /* gpt2 */
	{ CUDNN_DATA_BFLOAT16, 8, 1024, 25, 64 },  /* gpt2-xl */
	{ CUDNN_DATA_HALF, 1, 131, 1, 64 },
	{ CUDNN_DATA_BFLOAT16, 2, 70, 3, 40 },
	{ CUDNN_DATA_HALF, 3, 64, 2, 8 },
	{ CUDNN_DATA_BFLOAT16, 1, 2048, 16, 128 },
};

/* NULL: cuDNN does not take the description. */
static cudnnBackendDescriptor_t describe(const struct cudnn_api *api, size_t i)
{
	cudnnBackendDescriptor_t d = NULL;
	char text[2048];

	snprintf(text, sizeof(text), description, devices[i].version,
		 devices[i].multiprocessors, devices[i].shared, devices[i].name);
	if (api->cudnnBackendCreateDescriptor(
		    CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d) ||
	    api->cudnnBackendSetAttribute(
		    d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
		    CUDNN_TYPE_CHAR, (int64_t)strlen(text), text) ||
	    api->cudnnBackendFinalize(d))
		return NULL;
	return d;
}

static bool plan(struct cudnn_graph *g, cudnnBackendDescriptor_t device,
		 const char *what)
{
	const struct cudnn_target t = { .device = device };
	const bool can = g && cudnn_graph_plan(g, &t) == 0;

	if (can)
		printf("  %s: %zu bytes of workspace", what,
		       cudnn_graph_workspace(g));
	else
		printf("  %s: FAILED: %s", what,
		       g ? cudnn_graph_why(g) : "out of memory");
	cudnn_graph_free(g);
	return can;
}

static bool plan_all(const struct cudnn_api *api,
		     cudnnBackendDescriptor_t device, const char *name)
{
	bool can = true;

	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct cudnn_attention *const a = &shapes[i];

		printf("%s, %d x %d x %d x %d:", name, (int)a->batch,
		       (int)a->seq, (int)a->heads, (int)a->width);
		can &= plan(cudnn_attention_graph(api, a), device, "forwards");
		can &= plan(cudnn_attention_grad_graph(api, a), device, "back");
		printf("\n");
	}
	return can;
}

int main(void)
{
	const struct cudnn_api *const api = cudnn_api();
	bool can = true;

	if (!api) {
		printf("cuDNN cannot be loaded\n");
		return 77;
	}
	printf("cuDNN %zu\n", api->version);
	if (api->version < VERSION_MIN)
		return 77;
	for (size_t i = 0; i < COUNT(devices); i++) {
		const cudnnBackendDescriptor_t d = describe(api, i);

		if (!d)
			printf("%s: FAILED: not taken\n", devices[i].name);
		can &= d && plan_all(api, d, devices[i].name);
		if (d)
			api->cudnnBackendDestroyDescriptor(d);
	}
	return !can;
}

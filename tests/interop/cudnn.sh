#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The real cuDNN has kernels for our graphs of attention (cudnn_plans.c), and
# compiles them; what they compute is for tests/test_cuda on a GPU.  By hand:
#
#     UCFS_PYTHON=/venv/bin/python cudnn.sh
#
# Needs a Python with NVIDIA's cuDNN in it, as torch brings it, and the CUDA
# toolkit's headers; no GPU: a driver is made that accepts what is compiled and
# does nothing with it.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python nvidia.cudnn
require_programs nvcc cc nm
make_scratch unused
top=$here/../..
packages=$("$UCFS_PYTHON" -c 'import nvidia.cudnn as c; print(list(c.__path__)[0])')/..
toolkit=$(dirname "$(command -v nvcc)")/..
driver=$(find -L "$toolkit" -path '*/stubs/libcuda.so' 2>/dev/null | head -n 1)
[ -n "$driver" ] || skip "the toolkit has no stub of the driver"

# All that a driver has, and fails; but modules can be loaded.
{
	echo 'static long handle[8];'
	nm -D --defined-only "$driver" | awk '$2 == "T" { print $3 }' | sort -u |
		while read -r name; do
			case $name in
			cuLibraryLoadData | cuLibraryGetKernel | cuKernelGetFunction)
				echo "int $name(void **p) { *p = handle; return 0; }" ;;
			cuLibrary* | cuKernel* | cuFunc*)
				echo "int $name(void) { return 0; }" ;;
			*)
				echo "int $name(void) { return 999; }" ;;
			esac
		done
} >"$scratch/driver.c"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$scratch/libcuda.so.1" \
	"$scratch/driver.c" || exit 1
cc -D_GNU_SOURCE -I"$top" -isystem "$packages/cudnn/include" \
	-isystem "$toolkit/include" -o "$scratch/plans" "$here/cudnn_plans.c" \
	"$top"/gpu/cudnn_{api,graph,attention}.c -ldl || exit 1
LD_LIBRARY_PATH=$packages/cudnn/lib:$(find "$packages" -maxdepth 2 -name lib -path '*/cu*/lib' -printf '%p:')$scratch \
	"$scratch/plans" || fail "plans"
[ "$failures" -eq 0 ]

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The real cuDNN has kernels for our graphs of attention, and compiles them, for
# devices that are only described to it; what they compute is for
# tests/unit/train/test_cuda on a GPU.  No GPU is needed: a driver is made that takes what
# is compiled and does nothing with it.
#
# Another cuDNN than the one that was found is tried with LD_LIBRARY_PATH.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
plans=$top_builddir/tests/programs/cudnn_plans
[ -x "$plans" ] || skip "uctrain was built without cuDNN"
toolkit=$(dirname "$(readlink -f "$NVCC")")/..
driver=$(find -L "$toolkit" -path '*/stubs/libcuda.so' 2>/dev/null | head -n 1)
[ -n "$driver" ] || skip "the CUDA toolkit has no stub of the driver"

# Whatever a driver has fails, but modules are loaded.
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
} >"$tmp/driver.c"
$CC -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$tmp/libcuda.so.1" \
	"$tmp/driver.c" || skip "no driver could be made"
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$tmp "$plans"
rc=$?
[ "$rc" -ne 77 ] || skip "there is no cuDNN that can be asked"
check "every graph has kernels" test "$rc" -eq 0
finish

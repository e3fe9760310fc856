#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The archive of `make gpu-bundle` works from any directory without other files, and its benchmark
# has every part.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
command -v uctrain >/dev/null || skip "uctrain was not built"
[ "${sanitize:-no}" = no ] || skip "programs with sanitizers are not handed to others"

program=$(realpath "$top_builddir")/uctrain
check "a bundle is made" "$top_srcdir/packaging/gpu-bundle.sh" "$tmp/some.tar.gz" "$top_srcdir" "" \
	"$program" >"$tmp/made"
mkdir "$tmp/a place"
tar -C "$tmp/a place" -xf "$tmp/some.tar.gz"
bundle="$tmp/a place/some"

# Run it without variables, from another directory, with each C library.
cd / || exit 1
for libc in "" own; do
	check "it starts ${libc:+with its C library}" test \
		"$(env -i PATH=/usr/bin:/bin "UCFS_BUNDLE_LIBC=$libc" "$bundle/bin/uctrain" --version)" = \
		"$(uctrain --version)"
	check "it trains ${libc:+with its C library}" env -i PATH=/usr/bin:/bin "UCFS_BUNDLE_LIBC=$libc" \
		"$bundle/bin/uctrain" "${tiny[@]}" --train_batch_size 1 --steps 2 \
		--run_name "run$libc" --log_dir "$tmp/logs" >"$tmp/words" 2>&1
done
check "the same, whichever it is" test "$(losses run)" = "$(losses runown)"

# It takes no library from elsewhere.
"$bundle"/lib/libc/ld-linux* --library-path "$bundle/lib/libc:$bundle/lib" --list \
	"$bundle/libexec/uctrain" >"$tmp/list"
check "its libraries" test "$(grep -c '=>' "$tmp/list")" -gt 5
check "no MPI, which ranks load" test "$(grep -c libmpi "$tmp/list")" = 0
check "are all its own" test "$(grep '=> /' "$tmp/list" | grep -vcF "=> $bundle/lib/")" = 0

# Run it in a root directory with nothing else, which requires root.
if [ "$(id -u)" -eq 0 ] && mkdir "$tmp/root" && cp -r "$bundle" "$tmp/root/it" &&
	said=$(chroot "$tmp/root" /it/lib/libc/ld-linux-x86-64.so.2 \
		--library-path /it/lib/libc:/it/lib /it/libexec/uctrain --version 2>&1); then
	check "in an empty root" test "$said" = "$(uctrain --version)"
else
	echo "an empty root: not tried: ${said-no root}"
fi

check "a program that is not there" test "$("$top_srcdir/packaging/gpu-bundle.sh" "$tmp/none.tar.gz" \
	"$top_srcdir" "" "$tmp/absent" >"$tmp/words" 2>&1; echo $?)" != 0
check "NVIDIA's libraries that are not there" test "$("$top_srcdir/packaging/gpu-bundle.sh" "$tmp/none.tar.gz" \
	"$top_srcdir" "$tmp" "$program" >"$tmp/words" 2>&1; echo $?)" != 0
check "are named" grep -q libcublasLt "$tmp/words"
check "slow kernels" test "$(NVCCFLAGS="-Xcicc -O1 -Xptxas -O1" "$top_srcdir/packaging/gpu-bundle.sh" \
	"$tmp/none.tar.gz" "$top_srcdir" "" "$program" >"$tmp/words" 2>&1; echo $?)" = 1
check "are said" grep -q "with -Xcicc -O1 -Xptxas -O1 and slow" "$tmp/words"
check "nothing is left of either" test ! -e "$tmp/none.tar.gz"

check "it skips without a GPU" test "$(env -i PATH=/usr/bin:/bin "$bundle/gpu" >"$tmp/words" 2>&1; echo $?)" = 77
check "a part that is none" test "$(env -i PATH=/usr/bin:/bin "$bundle/gpu" gpt3 >"$tmp/words" 2>&1; echo $?)" = 2

# Stub programs print plausible results of a GPU: 1000 tokens a second.
mkdir "$tmp/fake"
cat >"$tmp/fake/nvidia-smi" <<'EOS'
#!/bin/sh
case $* in
*memory.total*) echo 81559 ;;
*) echo "GPU of the test" ;;
esac
EOS
cat >"$tmp/fake/uctrain" <<'EOS'
#!/bin/bash
loss=5
while [ $# -gt 1 ]; do
	case $1 in
	--log_dir) logs=$2 ;;
	--run_name) name=$2 ;;
	--recompute) loss=5.5 ;; # only on the GPU
	--device) [ "$2" = cuda ] && bad=$loss ;;
	esac
	shift
done
mkdir -p "$logs/$name"
for i in $(seq 0 30); do echo "$i,${bad:-5},1e-3,1,1000,1,1,"; done >"$logs/$name/metrics.csv"
echo "uctrain: cuBLASLt 13.0.0 of /lib/it"
EOS
printf '#!/bin/sh\necho "test_cuda: $*"\n' >"$tmp/fake/test_cuda"
printf '#!/bin/sh\necho "gpuops: $*"\n' >"$tmp/fake/gpuops"
chmod +x "$tmp"/fake/*
bench() {
	env -i PATH="$tmp/fake:/usr/bin:/bin" TMPDIR="$tmp" "UCFS_GPU_SECONDS=${seconds:-420}" UCFS_BENCH_ROUNDS=3 UCFS_DEEPSPEED_PYTHON=false \
		"$bundle/bench/gpu.sh" "$@" 2>&1
}
check "parts by name" bench first tests pairs ops gpt2 >"$tmp/words"
check "the library" grep -q '^cuBLASLt 13.0.0 of' "$tmp/words"
check "does it start" test "$(grep -c '^first-.* ok, ' "$tmp/words")" = 3
check "pairs that agree" test "$(grep -c ': losses .* in 30 steps' "$tmp/words")" -gt 15
check "and one that does not" test "$(grep 'FAILED: losses' "$tmp/words" | cut -d' ' -f1)" = recompute
check "tests" grep -q '^test_cuda: $' "$tmp/words"
check "operations" test "$(grep -c '^gpuops: -b' "$tmp/words")" = 2
check "steps" grep -q '^gpt2, 32 x 1024 .*1000 .*1000\.\.1000' "$tmp/words"
check "rounds" grep -q '^gpt2: 3 rounds' "$tmp/words"
check "only those" test "$(grep -c 'gpt2-xl' "$tmp/words")" = 0
seconds=0
bench gpt2-xl gpt2-torch >"$tmp/words"
check "without time, one round" grep -q '^gpt2-xl: 1 rounds' "$tmp/words"
check "PyTorch is missed aloud" grep -q '^gpt2-torch: no PyTorch' "$tmp/words"
finish

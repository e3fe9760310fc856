#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Packs programs with all that they need on a machine where nothing is installed and
# there is no network: their libraries, a C library for machines with an older one,
# and the benchmark of GPUs.
#
#   gpu-bundle.sh OUT.tar.gz SOURCE CUDA_DIRS PROGRAM...
#
#   SOURCE       the source tree, whose tests/bench is packed
#   CUDA_DIRS    directories, separated by colons, whose cuBLASLt and NCCL are
#                packed as well; "" if the machine has them
#   NVCCFLAGS    what kernels were compiled with, which must not make them slow
#
# `make gpu-bundle` runs it.
set -eu

case " ${NVCCFLAGS-} " in
*[\ ,]-O[0-2]* | *' -G '* | *' -g '*)
	echo "gpu-bundle.sh: kernels are compiled with $NVCCFLAGS and slow; build them in another" \
		"directory, configured without NVCCFLAGS" >&2
	exit 1
	;;
esac

out=$1 source=$2 dirs=$3
shift 3
case $out in
*.tar.gz) name=$(basename "$out" .tar.gz) ;;
*) echo "gpu-bundle.sh: $out: is no name of a .tar.gz" >&2 && exit 2 ;;
esac
stage=$(mktemp -d "${TMPDIR:-/tmp}/ucfs-bundle.XXXXXX") || exit 1
trap 'rm -rf "$stage"' EXIT
top=$stage/$name
mkdir -p "$top/bin" "$top/libexec" "$top/lib/libc" "$top/bench"

# Libraries of the C library belong to one loader, and are used with it or not at
# all; libcuda is the driver's.
place() {
	case $(basename "$1") in
	libcuda.so.*) ;;
	ld-linux* | libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libanl.so.*)
		cp -L "$1" "$top/lib/libc/" ;;
	*) cp -L "$1" "$top/lib/" ;;
	esac
}

# What a program or library needs, as far as it is there.
needs() {
	ldd "$1" | sed -n -e 's/.* => \(\/.*\) (0x.*/\1/p' -e 's/^[[:space:]]*\(\/.*\) (0x.*/\1/p'
}

for program; do
	if ldd "$program" | grep 'not found' >&2; then
		echo "gpu-bundle.sh: $program: needs a library that is not here" >&2
		exit 1
	fi
	cp "$program" "$top/libexec/"
	for library in $(needs "$program"); do place "$library"; done
	ln -s ../start "$top/bin/$(basename "$program")"
done

# What uctrain loads when it needs it, by the names that it asks for.
missing=${dirs:+libcublasLt}
while [ -n "$dirs" ]; do
	dir=${dirs%%:*}
	case $dirs in
	*:*) dirs=${dirs#*:} ;;
	*) dirs= ;;
	esac
	for library in "$dir"/libcublasLt.so.?? "$dir"/libnccl.so.?; do
		[ -e "$library" ] || continue
		case $library in
		*libcublasLt*) missing= ;;
		esac
		place "$library"
		for more in $(needs "$library"); do place "$more"; done
	done
done
if [ -n "$missing" ]; then
	echo "gpu-bundle.sh: no $missing in CUDA_DIRS" >&2
	exit 1
fi

cat >"$top/start" <<'END'
#!/bin/sh
# Starts the program of this name with the libraries beside it, and with this
# machine's C library, or, where that is too old or UCFS_BUNDLE_LIBC=own, the
# bundle's.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
program=$here/libexec/$(basename "$0")
own=$(echo "$here"/lib/libc/ld-linux*)
path=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:/usr/local/cuda/lib64
if [ "${UCFS_BUNDLE_LIBC-}" != own ] &&
	said=$(LD_LIBRARY_PATH=$path LD_TRACE_LOADED_OBJECTS=1 "$program" 2>&1) &&
	case $said in *'not found'*) false ;; esac; then
	LD_LIBRARY_PATH=$path exec "$program" "$@"
fi
exec "$own" --library-path "$here/lib/libc:$path" "$program" "$@"
END
cat >"$top/gpu" <<'END'
#!/bin/sh
# The benchmark of tests/bench/gpu.sh with the programs of this bundle.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
PATH=$here/bin:$PATH exec "$here/bench/gpu.sh" "$@"
END
chmod +x "$top/start" "$top/gpu"
cp "$source"/tests/bench/gpu.sh "$source"/tests/bench/gpustep.py "$source"/tests/bench/lib.sh "$top/bench/"
cat >"$top/README" <<'END'
uctrain for a machine with an NVIDIA GPU and its driver, where nothing else need be
installed.  Unpack anywhere, then:

    bin/uctrain --device cuda --dtype bf16 --model gpt2 --seq_length 1024
    ./gpu PART...  first tests pairs same: does it start, is it right?
                   gpt2 gpt2-torch ops load, gpt2-xl gpt2-xl-torch: how fast is it?
                   Each takes less than eight minutes, or UCFS_GPU_SECONDS.

cuBLASLt and NCCL are taken from lib/, LD_LIBRARY_PATH or /usr/local/cuda/lib64.
END

# Each program starts with nothing but what is here.
for program in "$top"/bin/uctrain "$top"/bin/ucckpt; do
	[ ! -e "$program" ] || env -i PATH=/usr/bin:/bin "$program" --version >/dev/null || {
		echo "gpu-bundle.sh: $(basename "$program") does not start from the bundle" >&2
		exit 1
	}
done
kernels=$(grep -ao 'sm_[0-9]\{2,3\}' "$top"/libexec/* 2>/dev/null | sed 's/.*://' | sort -u | tr '\n' ' ')
mkdir -p "$(dirname "$out")"
tar -C "$stage" --owner=0 --group=0 --sort=name -cf - "$name" | gzip -9 >"$out.tmp"
mv "$out.tmp" "$out"
echo "$out: $(du -h "$out" | cut -f1), unpacked $(du -sh "$top" | cut -f1), kernels: ${kernels:-none}"

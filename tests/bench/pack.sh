#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Pack the newest tag of UCFS_BENCH_DIR and read the pack, on two threads, against cp,
# pread, and a mount of the directory.
. "${BASH_SOURCE%/*}/lib.sh"
begin
compile usage
[ -x "${top_builddir:-.}/tests/bench/packread" ] || skip "tests/bench/packread is not built"
room "$work" 4 || skip "no room in $work"

size=$(cat "$source/$tag"/* | wc -c)
run=$work/run
mkdir "$run"
cp -a "$source/$tag" "$run/$tag"
echo "$tag" >"$run/latest"
source=$run
header pack

# Pack the tag.
warm
for ((i = 0; i < rounds; i++)); do
	rm -rf "$work/copy" "$work/p.ucpack"
	sync
	t=$(now)
	read -r -a took < <("$work/usage" cp -r "$run/$tag" "$work/copy")
	sync -f "$work"
	add cpsync "$((($(now) - t) / 1000))"
	add cp "${took[0]}"
	add cpcpu "${took[1]}"
	read -r -a took < <("$work/usage" ucckpt pack -j 2 "$run/$tag" -o "$work/p.ucpack" 2>/dev/null)
	add pack "${took[0]}"
	add packcpu "${took[1]}"
	rm "$work/p.ucpack"
	read -r -a took < <("$work/usage" ucckpt pack -j 1 "$run/$tag" -o "$work/p.ucpack" 2>/dev/null)
	add packcpu1 "${took[1]}"
	timed unpack ucckpt unpack --check -j 2 "$work/p.ucpack" >/dev/null
done
row_of "cp" cp ms
row_of "cp, then on the disk" cpsync ms
row_of "cp, processor" cpcpu ms
row_of "pack, two threads, verified, on the disk" pack ms
row_of "pack, processor" packcpu ms
row_of "pack, one thread, processor" packcpu1 ms
bar "pack, times cp's wall time" "$(ratio "$(median pack)" "$(median cp)")" "<" 1.5 \
	"$(median pack)" "$(median cp)"
figure "pack, times cp's wall time on the disk" "$(median pack)" "$(median cpsync)" \
	"$(ratio "$(median pack)" "$(median cpsync)")"
# Everything that the process spends, in the program and in the kernel: reading, comparing,
# encoding, decoding for proof, hashing, writing, syncing.
bar "pack, GB/s of original per core" \
	"$(awk -v n="$size" -v t="$(median packcpu1)" 'BEGIN { printf "%.2f", n / t / 1e6 }')" \
	">=" 0.7
row_of "unpack --check, two threads" unpack ms
rm -rf "$work/copy"
figure "packed, % of the original" \
	"$(awk -v a="$(stat -c %s "$work/p.ucpack")" -v b="$size" 'BEGIN { printf "%.1f", 100 * a / b }')"

# Random reads.
name=$(cd "$run/$tag" && ls -S | head -n 1)
"${top_builddir:-.}/tests/bench/packread" "$work/p.ucpack" "$name" "$run/$tag/$name" >"$work/random"
cat "$work/random"
bar "random 4 KiB, us" "$(awk '/^4 KiB/ { print $3 }' "$work/random")" "<" 30
bar "random 128 KiB, times pread" "$(awk '/^128 KiB/ { print $(NF - 1) }' "$work/random")" "<" 5

# Read through a mount.
mkdir "$work/packed"
mv "$work/p.ucpack" "$work/packed/$tag.ucpack"
ticks() { awk '{ print ($14 + $15) * 10 }' "/proc/$server/stat"; }
read_all() { find "$view/zero" -name '*.pt' -print0 | sort -z | xargs -0 "$work/readfile" >/dev/null; }

# reads NAME: read the whole tree, warm and in sequence; measure processor time of both sides.
reads() {
	local before
	local -a took

	mount_as ro
	read_all
	before=$(ticks)
	export -f read_all
	read -r -a took < <(view=$view work=$work "$work/usage" bash -c read_all 2>/dev/null)
	add "$1.cpu" "$(($(ticks) - before + ${took[1]%.*}))"
	add "$1.wall" "${took[0]}"
	add "$1.hwm" "$(proc "$server" status VmHWM)"
	unmount
}
cold_reads() {
	sync
	for f in "$source"/*; do
		if [ -d "$f" ]; then
			for g in "$f"/*; do dd if="$g" iflag=nocache count=0 status=none; done
		else
			dd if="$f" iflag=nocache count=0 status=none
		fi
	done
	mount_as crc=zero
	timed "$1.cold" read_all
	unmount
}
for ((i = 0; i < rounds; i++)); do
	source=$run; reads plain; cold_reads plain
	source=$work/packed; reads packed; cold_reads packed
done
row_of "reading all, mount of the directory, processor" plain.cpu ms
row_of "reading all, mount of the pack, processor" packed.cpu ms
bar "warm sequential reads, times the processor" \
	"$(ratio "$(median packed.cpu)" "$(median plain.cpu)")" "<" 3 \
	"$(median packed.cpu)" "$(median plain.cpu)"
row_of "cold, mount of the directory" plain.cold ms
row_of "cold, mount of the pack" packed.cold ms
bar "cold, of the unpacked time" \
	"$(ratio "$(median packed.cold)" "$(median plain.cold)")" "<" 0.9 \
	"$(median packed.cold)" "$(median plain.cold)"
# The limit is 64 MiB of blocks and 32 MiB for everything else.
bar "memory, KiB at most" "$(median packed.hwm)" "<" $((96 << 10)) \
	"$(median packed.hwm)" "$(median plain.hwm)"

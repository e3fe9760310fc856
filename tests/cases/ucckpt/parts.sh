#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several processes, as on several machines, share the work of one command.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

source=$good/meg_tp2_dp2_z1_bf16
cd "$tmp" || exit 1
mkdir one parts
ucckpt convert "$source" one/out >/dev/null 2>&1 || fail "one process"

# Run four at once; kill one, and run it again alone later.
convert() { ucckpt convert --part "$1" "$source" parts/out >"said.${1%/*}" 2>&1; }
for part in 1 2 4; do
	convert $part/4 &
done
wait
check "nothing is there before all are complete" test "$(ls parts)" = ""
check "it says who is missing: $(cat said.?)" grep -q "1 others are not yet" said.?
shared=$(find parts -mindepth 1 -maxdepth 1 -name '.out.parts-4-*')
check "all fill one directory" test -d "$shared"
# Simulate a kill: the journal lacks its files, and one of them is truncated.
truncate -s 17 "$shared/.ucfs-convert.2"
for file in "$shared"/zero/*/fp32.pt; do truncate -s 20 "$file"; done
for part in 1 2 4; do truncate -s 17 "$shared/.ucfs-convert.$part"; done
convert 1/4
convert 4/4
convert 2/4
convert 3/4
check "the one that is complete last names it" test -d parts/out
check "the bytes are those of one process" diff -r one/out parts/out
check "and the pointer beside it" cmp one/latest_universal parts/latest_universal
check "nothing else is left" test "$(find parts -mindepth 1 -maxdepth 1 -name '.*')" = ""
convert 3/4
check "once more finds it: $(cat said.3)" grep -q "was there, with the same files" said.3
# Simulate a kill between the rename and the removal of the journals.
touch parts/out/.ucfs-convert.2 parts/out/.ucfs-convert
convert 3/4
check "also with journals: $(cat said.3)" grep -q "was there, with the same files" said.3
check "which are removed" diff -r one/out parts/out

# A complete part loses a file before the last one ends, and writes it again; or it runs twice.
again() { ucckpt convert --part "$1" "$source" parts/again >said 2>&1; }
again 1/2
shared=$(find parts -mindepth 1 -maxdepth 1 -name '.again.parts-2-*')
rm "$(find "$shared" -name fp32.pt | head -n 1)"
again 2/2
check "a file is missing: $(cat said)" grep -q "$shared: does not have the files that its parts wrote" said
check "and nothing gets its name" test ! -e parts/again
flock "$shared/.ucfs-convert.1" "$(command -v ucckpt)" convert --part 1/2 "$source" parts/again >said 2>&1
check "twice at once: $(cat said)" grep -q "another process writes part 1 of 2" said
again 1/2
check "it is there again" diff -r one/out parts/again

# Run all at once: any of them may be last.
for part in 1 2 3 4; do
	ucckpt convert --view hf --hf_shard_size 10KB --part $part/4 "$source" parts/hf >/dev/null 2>&1 &
done
wait
ucckpt convert --view hf --hf_shard_size 10KB "$source" one/hf >/dev/null 2>&1
check "weights and their index" diff -r one/hf parts/hf

# Take part numbers from a launcher's variables.
SLURM_PROCID=0 SLURM_NTASKS=2 ucckpt extract --part auto "$source" '*_hf' '*_fp32' parts/x >/dev/null 2>&1
check "a part is not all" test "$(find parts/x -type f | wc -l)" = 1
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 ucckpt extract --part auto "$source" '*_hf' '*_fp32' parts/x >/dev/null 2>&1
ucckpt extract "$source" '*_hf' '*_fp32' one/x >/dev/null 2>&1
check "extract" diff -r one/x parts/x

# check --data: only one part finds the damage, and all files are read.
cp -r "$source/global_step4" damaged
shard=$(ls damaged/*rank_1*optim_states.pt | head -n 1)
size=$(stat -c %s "$shard")
printf '\377\377\377\377' | dd of="$shard" bs=1 seek=$((size / 2)) conv=notrunc status=none
found=0
for part in 1 2 3; do
	ucckpt check --data --part $part/3 damaged >said || found=$((found + 1))
done
check "one part finds the damage" test $found = 1
ucckpt check --data --part 2/3 "$source" >said
check "a part says so: $(cat said)" grep -q "^no problems found in part 2 of 3" said

while IFS='|' read -r part text; do
	ucckpt convert --part "$part" "$source" parts/no >said 2>&1
	check "$part: exit status" test $? = 2
	check "$part: $(cat said)" grep -q -e "$text" said
done <<'END'
0/4|must be I/N
5/4|must be I/N
2|must be I/N
1/2/3|must be I/N
auto|say which part it is
END
ucckpt check --part 1/2 "$source" >said 2>&1
check "a check of names is not shared: $(cat said)" grep -q "part requires --data" said
finish

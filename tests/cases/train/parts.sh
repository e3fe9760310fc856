#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of ranks that share a model, by tensors or by layers, is restored exactly by any
# ranks, from their files and from a mount (ranks_checkpoint.c).
# shellcheck source=tests/cases/train/ranks_lib.sh
. "$(dirname "$0")/ranks_lib.sh"
require_fuse

# Ranks | of which tensor-parallel | stages | ZeRO stage | type
saved="1 1 1 1 fp32
2 1 1 2 bf16
2 2 1 0 fp32
2 2 1 0 bf16
2 2 1 1 fp32
4 2 1 1 bf16
4 2 1 2 fp16
4 2 1 2 fp32
2 2 1 3 fp32
4 2 1 3 bf16
2 1 2 0 bf16
2 1 2 1 fp32
4 1 2 1 fp16
4 2 2 1 bf16
4 2 2 0 fp32"
saved=$(sampled <<<"$saved")

# Ranks | of which tensor-parallel | stages | ZeRO stage
others="1 1 1 1
2 1 1 3
3 1 1 0
2 2 1 0
2 2 1 2
6 2 1 2
4 2 1 3
2 1 2 0
4 1 2 1
4 2 2 1"
others=$(sampled <<<"$others")
# Ranks that resume 16-bit types, which are partitioned like fp32.
some="2 1 1 3
2 2 1 2
4 2 2 1"

each() {
	local ranks tensor pipe stage dtype name
	while read -r ranks tensor pipe stage dtype; do
		name=n$ranks-t$tensor-p$pipe-z$stage-$dtype
		"$@"
	done <<<"$saved"
}

save() {
	later $ranks $name tensor=$tensor pipe=$pipe stage=$stage dtype=$dtype schedule=2 save="$tmp/$name"
}

load() {
	later $ranks $name-again tensor=$tensor pipe=$pipe stage=$stage dtype=$dtype schedule=2 \
		load="$tmp/$name" steps=0
	later $ranks $name-on tensor=$tensor pipe=$pipe stage=$stage dtype=$dtype schedule=2 \
		load="$tmp/$name" steps=6
}

# All are tags of one run, so one mount shows all.
gather() {
	mkdir -p "$tmp/all"
	mv "$tmp/$name/global_step3" "$tmp/all/$name"
}

compare() {
	same "$name trained as one rank does" "$(state one-$dtype)" $name
	same "$name from its files" "$(state one-$dtype)" $name-again
	same "$name goes on" "$(state six-$dtype)" $name-on
}

for dtype in fp32 bf16 fp16; do
	later 1 one-$dtype dtype=$dtype schedule=2
	later 1 six-$dtype dtype=$dtype schedule=2 steps=6
done
each save
start
each load
start
each compare

# Together all ranks read each of 1128 elements once, in three states of 4 bytes; every
# tensor-parallel rank reads all 114 replicated ones, and both ends of a pipeline the 66 of the
# embedding.  Data-parallel ranks of stage 0 read the same.
bytes() {
	echo $(((1128 + ($2 - 1) * 114 + ($3 > 1) * 66) * 12 * ($4 ? 1 : $1 / ($2 * $3))))
}

# Ranks that read their own slices from shards of a vocabulary of 11 also read the twelfth row.
own_bytes() {
	echo $(($(bytes "$@") + ($2 > 1 && $2 == tensor) * 72 * (1 + ($3 > 1)) * ($4 ? 1 : $1 / ($2 * $3))))
}

# restored FROM BYTES: $n ranks restore from it and read this many bytes.
restored() {
	local run=$name-n$n-t$t-p$p-z$z-$1
	same "$run" "$(state one-$dtype)" $run
	check "$run: bytes read" test "$(said $run | sed -n 's/^read \([0-9]*\) .*/\1/p')" = "$2"
}

# on_others CALL: call it with the ranks that restore $name, and whether also from $files: yes or
# empty.
on_others() {
	local n t p z files= others=$others
	[ $dtype = fp32 ] || others=$some
	[ $dtype != fp32 ] && [ $tensor$pipe != 22 ] && [ "$stage" != 0 ] || files=yes
	while read -r n t p z; do
		"$1"
	done <<<"$others"
}

restore() {
	local into=(tensor=$t pipe=$p stage=$z dtype=$dtype schedule=2 steps=0)
	later $n $name-n$n-t$t-p$p-z$z-mount "${into[@]}" universal=yes \
		load="$tmp/mnt" tag=${name}_universal
	[ -z "$files" ] || later $n $name-n$n-t$t-p$p-z$z-files "${into[@]}" load="$tmp/all" tag=$name
}

compare_restored() {
	restored mount "$(bytes $n $t $p $z)"
	[ -z "$files" ] || restored files "$(own_bytes $n $t $p $z)"
}

each gather
mount_fg "$tmp/all" || finish
each on_others restore
start
each on_others compare_restored
unmount

# Stages have 3 and 1 blocks, or 2 and 2.
later 1 four layers=4
for stage in 0 1; do
	later 2 uneven-z$stage layers=4 pipe=2 partition=1 stage=$stage save="$tmp/uneven-z$stage"
done
later 2 longer tensor=2 stage=0 steps=4 save="$tmp/longer"
start
for stage in 0 1; do
	later 2 even-z$stage layers=4 pipe=2 partition=2 stage=$stage load="$tmp/uneven-z$stage" steps=0
done
start
for stage in 0 1; do
	same "uneven stages, ZeRO's $stage" "$(state four)" uneven-z$stage
	same "resumed with another partition, ZeRO's $stage" "$(state four)" even-z$stage
done

# Model states are inconsistent, or of another model.
run=n4-t2-p2-z0-fp32
for bad in mixed lost; do
	cp -r "$tmp/all/$run" "$tmp/all/$bad"
done
cp "$tmp/longer/global_step4/mp_rank_01_model_states.pt" "$tmp/all/mixed"
rm "$tmp/all/lost/mp_rank_01_model_states.pt"
later 1 three-heads heads=3 width=12 load="$tmp/all" tag=$run steps=0
later 1 one-block layers=1 load="$tmp/all" tag=$run steps=0
later 1 mixed load="$tmp/all" tag=mixed steps=0
later 2 lost load="$tmp/all" tag=lost steps=0
start
refused "ranks that do not divide the heads" "another model: transformer.wte.weight has 12 x 6" three-heads
refused "more stages than blocks" "another model: it has transformer.h.1.attn.c_attn.bias" one-block
refused "a file of another step" "mp_rank_01_model_states.pt: is of 2 model-parallel ranks" mixed
refused "a file is missing" "the model-states file of data-parallel rank 0, model-parallel rank 1 is missing" lost
finish

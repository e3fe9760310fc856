#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hugging Face directories as sources.  (tree.sh compares their trees, like all
# others.)
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

gpt2=$good/hfdir_gpt2_bf16_sharded
types=$good/hfdir_types

cp -r "$gpt2" "$tmp/gpt2"
mount_fg "$tmp/gpt2"
cd "$tmp/mnt" || exit 1
check "source.txt says what it is" cmp source.txt <(printf 'Huggingface checkpoint')
check "and no other file is at the root" test "$(echo *)" = "source.txt zero"
check "weights are those of the directory" test \
	"$(ucckpt extents zero/transformer.wte.weight/fp32.pt | awk '$3 == "cast" { print $2, $NF }')" = \
	"1024 $tmp/gpt2/model-00001-of-00003.safetensors"
check "moments are zeros" test \
	"$(ucckpt extents zero/transformer.wte.weight/exp_avg.pt | awk '$3 == "zero" { print $2 }')" = 1024
mv "$tmp/gpt2" "$tmp/gone"
check "which need no file" test "$(cat zero/*/exp_avg*.pt | wc -c)" -gt 100000
cat zero/transformer.wte.weight/fp32.pt >/dev/null 2>&1 && fail "weights need one"
cd "$tmp" || exit 1
unmount

# DeepSpeed's engines need more files than the script writes.
mount_fg "$types" -o stage=any
check "stage=any has model states under both names" test \
	"$(cd "$tmp/mnt" && echo *)" = \
	"mp_rank_00_model_states.pt source.txt zero zero_pp_rank_0_mp_rank_00_model_states.pt"
check "which say the same" cmp \
	<(unzip -p "$tmp/mnt/mp_rank_00_model_states.pt" '*/data.pkl') \
	<(unzip -p "$tmp/mnt/zero_pp_rank_0_mp_rank_00_model_states.pt" '*/data.pkl')
check "an optimizer_state.pt" test -s "$tmp/mnt/zero/optimizer_state.pt"
check "and steps" test "$(echo "$tmp"/mnt/zero/scalar/*.pt | xargs -n1 basename | xargs)" = \
	"exp_avg.pt exp_avg_sq.pt fp32.pt step.pt"
unmount

# A run is recognised whatever else lies beside its tags.
cp -r "$good/z1_fp32_dp2" "$tmp/run"
cp "$types/model.safetensors" "$tmp/run/"
mkdir "$tmp/run/weights"
cp "$types/model.safetensors" "$tmp/run/weights"
mount_fg "$tmp/run"
check "a run with weights is a run" test -d "$tmp/mnt/global_step4_universal/zero"
check "which shows them" cmp "$tmp/mnt/model.safetensors" "$types/model.safetensors"

# Files of another mount can be mounted like any other.
mkdir "$tmp/mnt2"
check "a mount of a mount" ucfs "$tmp/mnt/weights" "$tmp/mnt2"
check "has the tree" sha256sum --quiet -c \
	<(sed -n "s|^file \\(.*\\) [0-9]* \\([0-9a-f]*\\)$|\\2  $tmp/mnt2/\\1|p" "$good/hfdir_types.digests")
fusermount3 -u "$tmp/mnt2"
unmount

# In the hub's cache, files are links.
mkdir -p "$tmp/hub/snapshots/1" "$tmp/hub/blobs"
cp "$types/model.safetensors" "$tmp/hub/blobs/4711"
ln -s ../../blobs/4711 "$tmp/hub/snapshots/1/model.safetensors"
mount_fg "$tmp/hub/snapshots/1"
check "links are followed" test -s "$tmp/mnt/zero/long/fp32.pt"

# A file that is not the planned one is not read.
printf x >>"$tmp/hub/blobs/4711"
cat "$tmp/mnt/zero/long/fp32.pt" >"$tmp/read" 2>&1 && fail "a changed file is read"
check "and is named" grep -q '1/model.safetensors: was written to since it was planned' "$tmp/log"
unmount

# refused DIR TEXT: the mount is refused with this reason.
refused() {
	local out
	if out=$(ucfs "$1" "$tmp/mnt" 2>&1); then
		fusermount3 -u "$tmp/mnt"
		fail "$1 was mounted"
	fi
	grep -q -e "$2" <<<"$out" || fail "$1: said '$out', not '$2'"
}
mkdir -p "$tmp/bad"
for f in "$gpt2"/model-*; do ln -s "$f" "$tmp/bad/"; done
cp "$gpt2/model.safetensors.index.json" "$tmp/bad/"
rm "$tmp/bad/model-00002-of-00003.safetensors"
refused "$tmp/bad" "model-00002-of-00003.safetensors: cannot open: No such file"
mkfifo "$tmp/bad/model-00002-of-00003.safetensors"
refused "$tmp/bad" "model-00002-of-00003.safetensors: not a regular file"
sed -i 's|model-00002|../bad/model-00002|' "$tmp/bad/model.safetensors.index.json"
refused "$tmp/bad" "model.safetensors.index.json: weight_map: the file of .* is no name in this directory"
finish

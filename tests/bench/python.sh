#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The Python package on a checkpoint of the size of GPT-2 124M, in memory: weights by
# state_dict() against torch.load of one file that has the same tensors, and a file by
# fsspec against uckpt_file_read into memory that is already in use.
. "${BASH_SOURCE%/*}/lib.sh"
needs_python numpy torch fsspec
mkrun=${top_builddir:-.}/tests/programs/mkrun
[ -x "$mkrun" ] || skip "tests/programs/mkrun is not built: make check builds it"
begin_work "${UCFS_BENCH_DEST:-/dev/shm}"

mkdir "$work/run"
"$mkrun" "$work/run" 148 840806 4
source=$work/run tag=global_step4
ucckpt convert --view fp32 "$source" "$work/fp32" >/dev/null
export PYTHONPATH=${top_srcdir:-.}/python UCFS_LIBRARY=${top_builddir:-.}/libuckpt.so.0
while read -r series ms; do
	add "$series" "$ms"
done < <("$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/python.py" "$source" \
	"$work/fp32/pytorch_model.bin" "$rounds")

header python
row_of "torch.load" torch ms
row_of "state_dict()" state_dict ms
row_of "state_dict('bf16')" bf16 ms
bar "state_dict(), of torch.load's speed" "$(ratio "$(median torch)" "$(median state_dict)")" \
	">=" 0.7 "$(median state_dict) ms" "$(median torch) ms"
row_of "uckpt_file_read" read ms
row_of "fs.cat_file" cat ms
bar "cat_file, of uckpt_file_read's speed" "$(ratio "$(median read)" "$(median cat)")" \
	">=" 0.5 "$(median cat) ms" "$(median read) ms"

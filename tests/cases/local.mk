# What is mounted or run, as a user would.  Cases that take or wait longest first: none should
# be left over in the end.
# Comparisons of numbers, and examples: other cases run the same code with sanitizers.
unsanitized = %D%/train/traffic.sh %D%/train/streams.sh %D%/train/invariant.sh \
	%D%/train/weights.sh %D%/train/accumulate.sh %D%/mount/demo.sh %D%/train/guide.sh
if !ENABLE_SANITIZE
scripts += $(unsanitized)
endif
scripts += \
	%D%/remote/faults.sh \
	%D%/remote/hangs.sh \
	%D%/train/cuda_shared.sh \
	%D%/train/cuda_sequence.sh \
	%D%/train/timeout.sh \
	%D%/train/graph.sh \
	%D%/train/parts.sh \
	%D%/train/cuda.sh \
	%D%/train/sequence.sh \
	%D%/mount/saved_again.sh \
	%D%/mount/saving.sh \
	%D%/train/tensor.sh \
	%D%/ucckpt/convert.sh \
	%D%/train/refusals.sh \
	%D%/ucckpt/pack.sh \
	%D%/ucckpt/dcp.sh \
	%D%/ucckpt/fsdp.sh \
	%D%/train/pipeline.sh \
	%D%/train/load.sh \
	%D%/remote/swift.sh \
	%D%/train/zero.sh \
	%D%/mount/tree.sh \
	%D%/train/cuda_ranks.sh \
	%D%/train/resume.sh \
	%D%/train/save.sh \
	%D%/train/names.sh \
	%D%/train/megatron.sh \
	%D%/train/reshape.sh \
	%D%/train/deepspeed.sh \
	%D%/train/dcp.sh \
	%D%/train/source.sh \
	%D%/train/errors.sh \
	%D%/train/load_traffic.sh \
	%D%/train/reductions.sh \
	%D%/train/bundle.sh \
	%D%/train/figures.sh \
	%D%/train/lock.sh \
	%D%/train/hf.sh \
	%D%/train/mount.sh \
	%D%/train/far.sh \
	%D%/train/pack.sh \
	%D%/mount/run.sh \
	%D%/mount/pack.sh \
	%D%/mount/torch.sh \
	%D%/mount/weights.sh \
	%D%/mount/recut.sh \
	%D%/mount/hfdir.sh \
	%D%/mount/tools.sh \
	%D%/mount/errors.sh \
	%D%/mount/roots.sh \
	%D%/remote/http.sh \
	%D%/remote/s3.sh \
	%D%/remote/urls.sh \
	%D%/remote/stacked.sh \
	%D%/mount/kinds.sh %D%/mount/reasons.sh \
	%D%/mount/mistakes.sh \
	%D%/mount/passthrough.sh \
	%D%/mount/far.sh \
	%D%/mount/waiting.sh \
	%D%/mount/descriptor.sh \
	%D%/mount/unprivileged.sh \
	%D%/mount/mapped.sh \
	%D%/mount/limits.sh \
	%D%/mount/lifecycle.sh \
	%D%/mount/shared.sh \
	%D%/mount/valgrind.sh \
	%D%/mount/example_extents.sh \
	%D%/library/example.sh \
	%D%/python/python.sh \
	%D%/ucckpt/clean.sh \
	%D%/ucckpt/hf_config.sh \
	%D%/ucckpt/info.sh %D%/ucckpt/info_html.sh %D%/ucckpt/parts.sh \
	%D%/ucckpt/check.sh \
	%D%/ucckpt/recut.sh \
	%D%/ucckpt/convert_fail.sh \
	%D%/ucckpt/convert_resume.sh \
	%D%/ucckpt/interrupted.sh \
	%D%/ucckpt/rules.sh \
	%D%/ucckpt/leftover.sh \
	%D%/ucckpt/ls.sh \
	%D%/ucckpt/diff.sh \
	%D%/ucckpt/extents.sh \
	%D%/train/ucplot.sh
EXTRA_DIST += $(unsanitized)
EXTRA_DIST += %D%/lib.sh %D%/far_lib.sh %D%/remote/remote_lib.sh %D%/remote/hostile.py %D%/remote/s3_server.py %D%/mpi.sh %D%/ucckpt/report.sh %D%/train/train_lib.sh \
	%D%/train/ranks_lib.sh %D%/mount/loadtorch.py \
	%D%/python/good.py %D%/python/test_arrays.py %D%/python/test_commands.py \
	%D%/python/test_fsspec.py %D%/python/test_mount.py %D%/python/test_processes.py \
	%D%/python/test_signals.py %D%/python/test_sources.py

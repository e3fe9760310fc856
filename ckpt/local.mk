# Understands checkpoints; knows nothing of FUSE or GPUs.  The list is in
# dependency order: a file may include only what stands above it
# (tests/lint/layers.sh).

noinst_LIBRARIES += %D%/libuckpt.a
%C%_libuckpt_a_SOURCES = \
	%D%/base/errmsg.h %D%/base/errmsg.c \
	%D%/base/checked.h \
	%D%/base/bytes.h \
	%D%/base/bytebuf.h %D%/base/bytebuf.c \
	%D%/base/arena.h %D%/base/arena.c \
	%D%/sys/parallel.h %D%/sys/parallel.c \
	%D%/sys/sigbus.h %D%/sys/sigbus.c \
	%D%/sys/copy_nt.h %D%/sys/copy_nt.c \
	%D%/sys/scratch.h %D%/sys/scratch.c \
	%D%/sys/crc32.h %D%/sys/crc32.c \
	%D%/pickle/value.h %D%/pickle/value.c \
	%D%/tensor/tensor.h %D%/tensor/tensor.c \
	%D%/sys/cpu_clones.h \
	%D%/tensor/cast.h %D%/tensor/cast.c \
	%D%/tensor/arith.h %D%/tensor/arith.c \
	%D%/base/source.h %D%/base/source.c \
	%D%/base/utf8.h %D%/base/utf8.c \
	%D%/base/json.h %D%/base/json.c \
	%D%/format/zip.h %D%/format/zip_read.c \
	%D%/pickle/denylist.h %D%/pickle/denylist.c \
	%D%/pickle/pickle_memo.h %D%/pickle/pickle_memo.c \
	%D%/pickle/pickle.h \
	%D%/pickle/pickle_machine.h %D%/pickle/pickle_machine.c \
	%D%/pickle/pickle_op.c %D%/pickle/pickle_read.c \
	%D%/pickle/pickle_write.c \
	%D%/format/legacy.h %D%/format/legacy_read.c \
	%D%/format/ptfile.h %D%/format/ptfile.c \
	%D%/format/safetensors.h %D%/format/safetensors_read.c \
	%D%/dirs/hfindex.h %D%/dirs/hfindex.c \
	%D%/format/serialization_id.h %D%/format/serialization_id.c \
	%D%/format/ptwrite.h %D%/format/ptwrite.c \
	%D%/format/safetensors_write.h %D%/format/safetensors_write.c \
	%D%/weights/weights_split.h %D%/weights/weights_split.c \
	%D%/dirs/names.h %D%/dirs/names.c \
	%D%/dirs/hfdir.h %D%/dirs/hfdir.c \
	%D%/dirs/tagdir.h %D%/dirs/tagdir_impl.h %D%/dirs/tagdir.c \
	%D%/dirs/tagdir_nvme.c \
	%D%/dirs/tags.h %D%/dirs/tags.c \
	%D%/model/experts.h %D%/model/experts_impl.h %D%/model/experts.c \
	%D%/model/experts_autoep.c \
	%D%/model/merge_rules.h %D%/model/merge_rules.c \
	%D%/model/rank_params.h %D%/model/rank_params_build.h \
	%D%/model/rank_params.c \
	%D%/model/rank_params_module.c %D%/model/rank_params_experts.c \
	%D%/model/geometry.h %D%/model/geometry_impl.h %D%/model/geometry.c \
	%D%/model/geometry_affine.c \
	%D%/model/geometry_experts.c \
	%D%/model/model.h %D%/model/model.c \
	%D%/zero/partition.h %D%/zero/partition.c \
	%D%/zero/shard.h %D%/zero/shard.c %D%/zero/shard_zero12.c \
	%D%/zero/shard_zero3.c \
	%D%/zero/shard_nvme.c \
	%D%/zero/index.h %D%/zero/index_impl.h %D%/zero/index_input.h \
	%D%/zero/index_input.c \
	%D%/zero/index_write.c %D%/zero/index_read.c %D%/zero/index_shard.c \
	%D%/zero/indexfile.h %D%/zero/indexfile.c \
	%D%/vfile/extent.h %D%/vfile/extent.c \
	%D%/vfile/gather.h %D%/vfile/gather.c \
	%D%/zero/checkpoint.h %D%/zero/checkpoint.c \
	%D%/vfile/shardcache.h %D%/vfile/shardcache.c \
	%D%/zero/param_extents.h %D%/zero/param_extents.c \
	%D%/plan/uc_file.h %D%/plan/uc_file.c %D%/plan/uc_file_optimizer.c \
	%D%/plan/uc_file_hf.h %D%/plan/uc_file_hf.c \
	%D%/vfile/crc_progress.h %D%/vfile/crc_progress.c \
	%D%/vfile/vfile.h %D%/vfile/vfile_impl.h %D%/vfile/vfile.c \
	%D%/vfile/vfile_map.c \
	%D%/vfile/vfile_crc.c %D%/vfile/vfile_read_all.c \
	%D%/weights/weights.h %D%/weights/weights_impl.h %D%/weights/weights.c \
	%D%/weights/weights_module.c \
	%D%/weights/weights_file.h %D%/weights/weights_file.c \
	%D%/weights/sidecars.h %D%/weights/sidecars.c \
	%D%/plan/plan.h %D%/plan/plan_impl.h %D%/plan/plan_universal.h \
	%D%/plan/plan.c \
	%D%/plan/plan_json.c %D%/plan/plan_universal.c %D%/plan/plan_index.c \
	%D%/plan/plan_universal_json.c %D%/plan/plan_hfdir.c \
	%D%/plan/plan_weights.c \
	%D%/states/state.h %D%/states/state.c \
	%D%/states/statetree.h %D%/states/statetree_impl.h \
	%D%/states/statetree.c \
	%D%/states/statetree_zero.c %D%/states/statetree_universal.c \
	%D%/states/statetree_hf.c \
	%D%/convert/shared_ranges.h %D%/convert/shared_ranges.c \
	%D%/convert/treewrite.h %D%/convert/treefile.h %D%/convert/treefile.c \
	%D%/convert/treewrite.c \
	%D%/sys/outdir.h %D%/sys/outdir.c

# Installed: what a program needs to ask a mounted file where its bytes lie.
ucfsincludedir = $(includedir)/ucfs
ucfsinclude_HEADERS = %D%/vfile/ucfs_ioctl.h

ckpt_libs = %D%/libuckpt.a \
	$(CJSON_LIBS) $(ZLIB_LIBS) $(ISAL_LIBS) $(ZSTD_LIBS) \
	$(PCRE2_LIBS) -lm

bin_PROGRAMS += ucckpt
ucckpt_SOURCES = \
	%D%/cmd/cmd.h %D%/cmd/cmd.c \
	%D%/cmd/progress.h %D%/cmd/progress.c \
	%D%/cmd/findings.h %D%/cmd/findings.c \
	%D%/cmd/diagnose.h %D%/cmd/diagnose.c \
	%D%/cmd/info.h %D%/cmd/info.c \
	%D%/cmd/info_text.c \
	%D%/cmd/info_json.c \
	%D%/check/check.h %D%/check/check.c \
	%D%/check/check_files.c \
	%D%/check/check_ranks.c \
	%D%/check/check_replicas.c \
	%D%/check/check_copies.c \
	%D%/check/check_layers.c \
	%D%/cmd/convert.c \
	%D%/diff/diff.h %D%/diff/diff.c \
	%D%/diff/diff_compare.c \
	%D%/diff/diff_summary.c \
	%D%/diff/diff_text.c \
	%D%/diff/diff_json.c \
	%D%/cmd/extents.c \
	%D%/main.c
ucckpt_LDADD = $(ckpt_libs)

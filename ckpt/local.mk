# Understands checkpoints; knows nothing of FUSE or GPUs.  The list is in
# dependency order: a file may include only what stands above it
# (tests/layers.sh).

noinst_LIBRARIES += %D%/libuckpt.a
%C%_libuckpt_a_SOURCES = \
	%D%/errmsg.h %D%/errmsg.c \
	%D%/checked.h \
	%D%/bytes.h \
	%D%/bytebuf.h %D%/bytebuf.c \
	%D%/arena.h %D%/arena.c \
	%D%/parallel.h %D%/parallel.c \
	%D%/busguard.h %D%/busguard.c \
	%D%/streamcopy.h %D%/streamcopy.c \
	%D%/scratch.h %D%/scratch.c \
	%D%/checksum.h %D%/checksum.c \
	%D%/value.h %D%/value.c \
	%D%/tensor.h %D%/tensor.c \
	%D%/cpu_clones.h \
	%D%/cast.h %D%/cast.c \
	%D%/arith.h %D%/arith.c \
	%D%/source.h %D%/source.c \
	%D%/utf8.h %D%/utf8.c \
	%D%/json.h %D%/json.c \
	%D%/zip.h %D%/zip_read.c \
	%D%/hostile.h %D%/hostile.c \
	%D%/memo.h %D%/memo.c \
	%D%/pickle.h \
	%D%/pickle_machine.h %D%/pickle_machine.c \
	%D%/pickle_op.c %D%/pickle_read.c %D%/pickle_write.c \
	%D%/legacy.h %D%/legacy_read.c \
	%D%/ptfile.h %D%/ptfile.c \
	%D%/safetensors.h %D%/safetensors_read.c \
	%D%/hfindex.h %D%/hfindex.c \
	%D%/namehash.h %D%/namehash.c \
	%D%/ptwrite.h %D%/ptwrite.c \
	%D%/stwrite.h %D%/stwrite.c \
	%D%/hfsplit.h %D%/hfsplit.c \
	%D%/names.h %D%/names.c \
	%D%/hfdir.h %D%/hfdir.c \
	%D%/ckdir.h %D%/ckdir_impl.h %D%/ckdir.c %D%/ckdir_swapped.c \
	%D%/tags.h %D%/tags.c \
	%D%/experts.h %D%/experts_impl.h %D%/experts.c \
	%D%/experts_autoep.c \
	%D%/merge.h %D%/merge.c \
	%D%/catalogue.h %D%/catalogue_impl.h %D%/catalogue.c \
	%D%/catalogue_module.c %D%/catalogue_experts.c \
	%D%/geometry.h %D%/geometry_impl.h %D%/geometry.c %D%/geometry_affine.c \
	%D%/geometry_experts.c \
	%D%/model.h %D%/model.c \
	%D%/partition.h %D%/partition.c \
	%D%/shard.h %D%/shard.c %D%/shard_zero12.c %D%/shard_zero3.c \
	%D%/shard_swapped.c \
	%D%/index.h %D%/index_impl.h %D%/index_input.h %D%/index_input.c \
	%D%/index_write.c %D%/index_read.c %D%/index_shard.c \
	%D%/indexfile.h %D%/indexfile.c \
	%D%/extent.h %D%/extent.c \
	%D%/gather.h %D%/gather.c \
	%D%/resolve.h %D%/resolve.c \
	%D%/shardcache.h %D%/shardcache.c \
	%D%/merged.h %D%/merged.c \
	%D%/content.h %D%/content.c %D%/content_optimizer.c \
	%D%/hfcontent.h %D%/hfcontent.c \
	%D%/sums.h %D%/sums.c \
	%D%/vfile.h %D%/vfile_impl.h %D%/vfile.c %D%/vfile_map.c \
	%D%/vfile_sum.c %D%/vfile_fill.c \
	%D%/weights.h %D%/weights_impl.h %D%/weights.c %D%/weights_module.c \
	%D%/hffile.h %D%/hffile.c \
	%D%/companions.h %D%/companions.c \
	%D%/plan.h %D%/plan_impl.h %D%/plan_universal.h %D%/plan.c \
	%D%/plan_json.c %D%/plan_universal.c %D%/plan_index.c \
	%D%/plan_universal_json.c %D%/plan_hfdir.c %D%/plan_weights.c \
	%D%/state.h %D%/state.c \
	%D%/statetree.h %D%/statetree_impl.h %D%/statetree.c \
	%D%/statetree_zero.c %D%/statetree_universal.c %D%/statetree_hf.c \
	%D%/treetaker.h %D%/treetaker.c \
	%D%/treewrite.h %D%/treefile.h %D%/treefile.c %D%/treewrite.c \
	%D%/outdir.h %D%/outdir.c

# Installed: what a program needs to ask a mounted file where its bytes lie.
ucfsincludedir = $(includedir)/ucfs
ucfsinclude_HEADERS = %D%/ucfs_ioctl.h

ckpt_libs = %D%/libuckpt.a \
	$(CJSON_LIBS) $(ZLIB_LIBS) $(ISAL_LIBS) $(ZSTD_LIBS) \
	$(PCRE2_LIBS) -lm

bin_PROGRAMS += ucckpt
ucckpt_SOURCES = \
	%D%/cmd.h %D%/cmd.c \
	%D%/progress.h %D%/progress.c \
	%D%/lines.h %D%/lines.c \
	%D%/survey.h %D%/survey.c \
	%D%/cmd_info.h %D%/cmd_info.c \
	%D%/cmd_info_text.c \
	%D%/cmd_info_json.c \
	%D%/cmd_check.h %D%/cmd_check.c \
	%D%/cmd_check_files.c \
	%D%/cmd_check_ranks.c \
	%D%/cmd_check_replicas.c \
	%D%/cmd_check_copies.c \
	%D%/cmd_check_layers.c \
	%D%/cmd_convert.c \
	%D%/cmd_diff.h %D%/cmd_diff.c \
	%D%/cmd_diff_compare.c \
	%D%/cmd_diff_judge.c \
	%D%/cmd_diff_text.c \
	%D%/cmd_diff_json.c \
	%D%/cmd_extents.c \
	%D%/main.c
ucckpt_LDADD = $(ckpt_libs)

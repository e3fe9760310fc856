# The table of a checkpoint's parameters, which loaders fill in and views are made of: the
# files of a tag and the tags of a run, what they mean, the rules that put slices together,
# the rows, and how ZeRO cuts them.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/rank_files.h %D%/rank_files.c %D%/detect.h \
	%D%/zero_dir.h %D%/leftover.h %D%/leftover.c %D%/zero_dir.c %D%/hfdir.h %D%/hfdir.c \
	%D%/detect.c %D%/hfhub.h %D%/hfhub.c %D%/tags.h %D%/tags.c %D%/experts.h \
	%D%/merge_rules.h %D%/merge_rules.c %D%/user_rules.h %D%/user_rules.c %D%/rank_table.h \
	%D%/geometry.h %D%/geometry_impl.h %D%/geometry.c %D%/geometry_affine.c %D%/experts.c \
	%D%/module_entries.h %D%/module_entries.c %D%/rank_params.h %D%/rank_params_build.h \
	%D%/rank_params_module.c %D%/rank_params.c %D%/rank_params_experts.c \
	%D%/model.h %D%/model.c %D%/partition.h %D%/partition.c \
	%D%/qkv.h %D%/qkv.c \
	%D%/checkpoint.h %D%/checkpoint.c %D%/frozen.h %D%/frozen.c

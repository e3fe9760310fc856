# What the files mean: parameters, their slices on each model-parallel rank,
# and the rules that put the slices together.
# Uses the rooms above; knows no ZeRO.
ckpt_libuckpt_a_SOURCES += \
	%D%/experts.h %D%/experts.c \
	%D%/merge_rules.h %D%/merge_rules.c \
	%D%/user_rules.h %D%/user_rules.c \
	%D%/rank_table.h %D%/rank_params.h %D%/rank_params_build.h %D%/rank_params_module.c \
	%D%/rank_params.c %D%/rank_params_experts.c \
	%D%/geometry.h %D%/geometry_impl.h %D%/geometry.c %D%/geometry_affine.c \
	%D%/model.h %D%/model.c

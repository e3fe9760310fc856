# Units of ckpt/zero and what stands on it: plans, weights, states;
# the reference checkpoints; random models.
unit_tests += \
	%D%/test_partition \
	%D%/test_all_views \
	%D%/test_view \
	%D%/test_identity \
	%D%/test_forms \
	%D%/test_affine \
	%D%/test_computed \
	%D%/test_bad \
	%D%/test_bad_ranks \
	%D%/test_lost \
	%D%/test_refused \
	%D%/test_good \
	%D%/test_weights_split \
	%D%/test_weights \
	%D%/test_layers \
	%D%/test_adapter \
	%D%/test_dcp \
	%D%/test_dcp_cuts \
	%D%/test_dcp_fused \
	%D%/test_state \
	%D%/test_recut \
	%D%/test_recut_names \
	%D%/test_property
tests_unit_views_test_affine_SOURCES = %D%/test_affine.c $(changed)
tests_unit_views_test_dcp_fused_SOURCES = %D%/test_dcp_fused.c $(changed)
tests_unit_views_test_recut_SOURCES = %D%/test_recut.c $(recut)
tests_unit_views_test_recut_names_SOURCES = %D%/test_recut_names.c $(recut)
tests_unit_views_test_property_SOURCES = %D%/test_property.c $(recut)
tests_unit_views_test_bad_SOURCES = \
	%D%/test_bad.c \
	%D%/bad.h \
	%D%/bad_experts.c \
	%D%/bad_files.c \
	%D%/bad_model.c \
	%D%/bad_optim.c

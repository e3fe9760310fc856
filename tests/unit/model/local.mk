# Units of ckpt/model.
unit_tests += \
	%D%/test_merge_rules \
	%D%/test_merge_rules_parts \
	%D%/test_user_rules \
	%D%/test_geometry \
	%D%/test_geometry_bad \
	%D%/test_geometry_random \
	%D%/test_experts \
	%D%/test_module_entries \
	%D%/test_model
tests_unit_model_test_merge_rules_SOURCES = %D%/test_merge_rules.c $(rules)
tests_unit_model_test_merge_rules_parts_SOURCES = %D%/test_merge_rules_parts.c $(rules)
tests_unit_model_test_user_rules_SOURCES = %D%/test_user_rules.c $(rules)
tests_unit_model_test_geometry_SOURCES = %D%/test_geometry.c $(slices)
tests_unit_model_test_geometry_bad_SOURCES = %D%/test_geometry_bad.c $(slices)
tests_unit_model_test_geometry_random_SOURCES = %D%/test_geometry_random.c $(slices)
tests_unit_model_test_experts_SOURCES = %D%/test_experts.c $(slices)

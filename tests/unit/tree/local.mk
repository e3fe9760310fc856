# Units of ckpt/tree.  tests/lint/tsan.sh runs them under the thread sanitizer.
unit_tests += \
	%D%/test_paths \
	%D%/test_tree

# Units of ckpt/tree.  tests/lint/tsan.sh runs them under the thread sanitizer.
unit_tests += \
	%D%/test_pathtab \
	%D%/test_tree

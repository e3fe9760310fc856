# Units of fs/, without a mount and without root.  tests/lint/tsan.sh runs them
# under the thread sanitizer.
if BUILD_FUSE
unit_tests += \
	%D%/test_backing \
	%D%/test_pathtab \
	%D%/test_pool \
	%D%/test_notify \
	%D%/test_predictor \
	%D%/test_repeats \
	%D%/test_stats \
	%D%/test_tree \
	%D%/test_view_type
endif
tests_unit_fs_test_backing_SOURCES = %D%/test_backing.c $(fakekernel) $(faketree) \
	fs/backing/assembly.c fs/backing/backing.c fs/backing/pool.c \
	fs/backing/predictor.c fs/backing/prefetch.c fs/backing/follow.c fs/log/stats.c
tests_unit_fs_test_pathtab_SOURCES = %D%/test_pathtab.c fs/tree/pathtab.c
tests_unit_fs_test_pool_SOURCES = %D%/test_pool.c $(fakekernel) \
	fs/backing/pool.c fs/log/stats.c
tests_unit_fs_test_predictor_SOURCES = %D%/test_predictor.c fs/backing/predictor.c
tests_unit_fs_test_notify_SOURCES = %D%/test_notify.c fs/log/notify.c
tests_unit_fs_test_repeats_SOURCES = %D%/test_repeats.c fs/log/repeats.c
tests_unit_fs_test_stats_SOURCES = %D%/test_stats.c fs/log/stats.c
tests_unit_fs_test_tree_SOURCES = %D%/test_tree.c fs/log/log.c fs/log/repeats.c fs/log/stats.c \
	fs/tree/pathtab.c fs/tree/rankfile.c fs/tree/view_type.c \
	fs/tree/views.c fs/tree/saved_again.c fs/tree/tree.c fs/tree/tree_dir.c \
	fs/tree/survey.c fs/tree/tree_open.c \
	fs/tree/tree_lookup.c \
	fs/tree/tree_control.c
tests_unit_fs_test_view_type_SOURCES = %D%/test_view_type.c fs/tree/view_type.c

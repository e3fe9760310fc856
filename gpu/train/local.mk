# The loop: rows, gradient, update, checkpoint.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/train_impl.h \
	%D%/feed.c %D%/pipeline.c %D%/step_graph.c \
	%D%/command.h %D%/train_steps.c %D%/train.c

# The training state, cut as ZeRO cuts it, and its update.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/optimizer.h %D%/optimizer.c \
	%D%/zero.h %D%/zero_impl.h %D%/zero.c %D%/zero_comm.c \
	%D%/zero_exact.c %D%/zero_weights.c

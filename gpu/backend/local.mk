# What a device can do (backend.h), and the CPU, which is the oracle.
# Uses ckpt/.
gpu_libuctrain_a_SOURCES += \
	%D%/splitmix.h %D%/backend.h \
	%D%/memory.h %D%/memory.c \
	%D%/dropout.h %D%/clip.h \
	%D%/cpu.h %D%/cpu_math.h \
	%D%/cpu_norm.c \
	%D%/cpu_linear.c \
	%D%/cpu_attention.c \
	%D%/cpu_cross_entropy.c \
	%D%/cpu_optimizer.c \
	%D%/backend_cpu.c

# Communication between ranks, by MPI and NCCL.
# Uses ckpt/, backend and nvidia.
gpu_libuctrain_a_SOURCES += \
	%D%/comm.h \
	%D%/pieces.h \
	%D%/comm_mpi.c \
	%D%/devcomm.h \
	%D%/device_group.h %D%/device_group.c \
	%D%/topology.h %D%/topology.c
if HAVE_NCCL
gpu_libuctrain_a_SOURCES += %D%/devcomm_nccl.c
else
gpu_libuctrain_a_SOURCES += %D%/devcomm_none.c
endif

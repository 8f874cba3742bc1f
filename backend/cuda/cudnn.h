// cuDNN's headers: the library is loaded at run time into cudnn_dlhandle. Include where WEIR_HAS_CUDNN.
#pragma once
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

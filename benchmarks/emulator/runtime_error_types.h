// Kernels of newer versions note invalid numbers; nothing does here.
#pragma once
struct RunTimeErrorInformation;
#define MYELIN_RECORD_RUNTIME_ERROR(recorder, kind)
